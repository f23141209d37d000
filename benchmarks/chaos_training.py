"""Kills a small training at random moments, many times, and compares what it leaves with that of a run that was never killed.

    python benchmarks/chaos_training.py                  100 kills, two processes, seed 1
    python benchmarks/chaos_training.py --kills 20 --processes 4 --seed 7

The victim is drawn anew each time: the launcher, one rank, or all of them at once. Exits with 1 unless the bytes are equal and nothing
is left running.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import psutil

from nmt.progress import Progress
from tests.copy_task import HARDWARE, STAGE, at_work, ended, last_saved, outs, start, wait, wait_for, write_corpus, write_params

EVERY = 5  # updates from one checkpoint to the next


def main() -> None:
    """Run the kills and say whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    updates = 40 * options.kills  # so many that there is something left to kill each time
    with tempfile.TemporaryDirectory() as top:
        calm, stormy = Path(top, "calm"), Path(top, "stormy")
        for folder, processes in ((calm, 1), (stormy, options.processes)):
            write_corpus(folder / "shards")
            settings = dict(updates=updates, checkpoint_every=EVERY, checkpoints_kept=3, microbatches=options.processes)
            write_params(folder, hardware={**HARDWARE, "processes": processes}, **settings)
        ended(start(calm, *STAGE))
        with Progress("kill", options.kills, "kills") as progress:
            for _ in range(options.kills):
                progress.advance(note=kill_once(stormy, chance))
        ended(start(stormy, *STAGE))
        same = outs(calm) == outs(stormy)
        print(f"{options.kills} kills, {updates} updates, {options.processes} processes: {'equal' if same else 'OTHER'} bytes")
        sys.exit(not same)


def kill_once(folder: Path, chance: random.Random) -> str:
    """Start the training, kill somebody at some moment after a new checkpoint, and return whom.

    Raises AssertionError when a rank survives.
    """
    before = last_saved(folder)
    process = start(folder, *STAGE)
    wait_for(folder, before + 1, process)
    time.sleep(chance.random() / 4)
    ranks = [child.pid for child in psutil.Process(process.pid).children()]
    name, victims = chance.choice([("launcher", [process.pid]), ("rank", [chance.choice(ranks)]), ("all", [process.pid, *ranks])])
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)
    wait(lambda: at_work(folder) == [], seconds=30)
    return f"at {last_saved(folder)}: {name}"


if __name__ == "__main__":
    main()
