"""What several processes on one machine cost, measured through the stage `train` itself, as ratios in one run.

    python benchmarks/sharing.py                      small in bfloat16, some minutes
    python benchmarks/sharing.py --config base --precision float32 --updates 12

1. Two processes that share an update, one thread each, beside one process with two threads.
2. Two trainings at the same time, each with all threads, beside one alone.
3. Seconds for which a checkpoint of the configuration holds the training up.
"""

import argparse
import csv
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    sys.path.insert(0, str(folder))

from workload import CONFIGS, DROPOUT, SMOOTHING, pairs_of

from tests.copy_task import STAGE, ended, start, write_params
from tests.shards import write_shards


def prepare(folder: Path, config: str, precision: str, updates: int, processes: int, threads: int) -> Path:
    """A folder with shards and a params.yaml for a training of that many updates, four checkpoints in it."""
    c = CONFIGS[config]
    pairs = [pair for batch in pairs_of(config, 2000) for pair in batch]
    for part, share in (("train", pairs * (1 + 2 * updates // c["batches"])), ("valid", pairs[:8])):
        write_shards(share, folder / "shards" / part, c["vocab"], "0" * 64)
    model = {key: c[key] for key in ("layers", "d_model", "d_ff", "heads")}
    model |= dict(d_k=c["d_model"] // c["heads"], d_v=c["d_model"] // c["heads"], dropout=DROPOUT, positions="sinusoidal")
    hardware = dict(device="cpu", processes=processes, threads=threads)
    settings: dict[str, Any] = dict(updates=updates, checkpoint_every=updates // 4, checkpoints_kept=1, tokens_per_update=2000)
    write_params(folder, model, hardware, microbatches=2, label_smoothing=SMOOTHING, precision=precision, **settings)
    return folder


def speeds(folder: Path) -> list[dict[str, float]]:
    """Rows of the table of speed, the first one, in which shapes are new, left out."""
    [path] = folder.glob(".scratch/train/*/speed.tsv")
    with path.open(encoding="utf-8") as stream:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream, delimiter="\t")][1:]


def rate(folder: Path) -> float:
    """Target tokens a second: the median over the rows."""
    return statistics.median(row["tokens_per_second"] for row in speeds(folder))


def main() -> None:
    """Measure the three and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="small", choices=CONFIGS)
    parser.add_argument("--precision", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--updates", type=int, default=80)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:

        def folder(name: str, processes: int = 1, threads: int = 2) -> Path:
            return prepare(Path(top, name), options.config, options.precision, options.updates, processes, threads)

        alone, shared = folder("alone"), folder("two processes", processes=2, threads=1)
        for place in (alone, shared):
            ended(start(place, *STAGE))
        both = [folder("left"), folder("right")]
        for process in [start(place, *STAGE) for place in both]:
            ended(process)
        again = folder("alone again")
        ended(start(again, *STAGE))
        reference = max(rate(alone), rate(again))
        print(f"{options.config} {options.precision}: one process, two threads: {rate(alone):,.0f} and {rate(again):,.0f} target tokens/s")
        for name, found in (("two processes, one thread each", [shared]), ("two trainings at once", both)):
            rates = [rate(place) for place in found]
            print(f"{name}: {' and '.join(f'{r:,.0f} ({r / reference:.2f} of one alone)' for r in rates)}")
        held_up = max(row["checkpoint"] / 100 * row["seconds"] for row in speeds(alone))
        print(f"a checkpoint holds the training up for {held_up:.2f} s at most")


if __name__ == "__main__":
    main()
