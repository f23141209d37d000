"""Lets a Prefect server, a runner and a small training suffer random faults, and compares what they leave with an undisturbed `dvc repro`.

    python benchmarks/chaos_flows.py                     20 faults, seed 1
    python benchmarks/chaos_flows.py --faults 4 --seed 7

Each fault (tests/pipelines/faults.py lists them) meets a run of the deployment `project`, at some moment; where it ends the run, the next
one goes on. Exits with 1 unless the last one ends with the same dvc.lock, every run in a true state, no stage was run again that had
finished, no lock and no process is left. Prints a line a fault: what it was, at which update, the state, the seconds until Prefect showed
it and all had ended.
"""

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.copy_task import last_saved
from tests.pipelines.faults import FINAL, Fault, Site, choose, copy_deployments, moment
from tests.pipelines.toy import wait_until
from tests.test_pipeline import Project

EVERY = 10  # updates from one checkpoint to the next
PATIENCE = 400  # seconds for what has no bound of its own, on a busy machine
SHOWN_SECONDS = 120  # within which the server, once it is there, shows a dead run
SAVED_SECONDS = 30  # within which a training saves its state and everything has ended


def environment(home: Path) -> dict[str, str]:
    """Nothing of the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_", "GIT_"))}
    who = {f"GIT_{role}_{what}": f"chaos@{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | who | {"HOME": str(home), "PATH": path, "DVC_SITE_CACHE_DIR": str(home / "dvc"), "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Run the faults and say whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--updates", type=int, default=6000, help="of the training, which must not end before the last fault (default: 6000)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        sys.exit(not disturbed(Path(top), random.Random(options.seed), options.faults, options.updates))


def disturbed(top: Path, chance: random.Random, count: int, updates: int) -> bool:
    """Whether a project in the folder `top` that suffers `count` faults ends as an undisturbed one."""
    calm, stormy = projects(top, updates)
    site = Site(stormy.folder, top / "prefect", stormy.environment)
    problems: list[str] = []
    run = None
    try:
        site.start_server()
        for number, fault in enumerate(choose(chance, count), 1):
            try:
                run, line, found = suffer(site, run, fault, chance)
            except AssertionError as error:
                run = None
                logs = [(site.home / f"{name}.log").read_text(errors="replace")[-3000:] for name in ("runner", "server")]
                print("\n".join(logs), file=sys.stderr, flush=True)
                line, found = f"{fault.name:35}", [str(error)]
            problems += found
            print(f"{number:3} {line}{'; '.join(['', *found])}", flush=True)
        site.ensure_runner(False)
        last = site.ended(run or site.ask(), 2 * PATIENCE)
        problems += [] if last == "COMPLETED" else [f"the last run is {last}"]
        # A runner that is stopped while a process is at its very end calls its run Cancelled, though it was Completed.
        wait_until(lambda: not site.part("flow"), "the last flow does not end", PATIENCE)
        site.runner.terminate()
        site.runner.wait(timeout=60)
        problems += [f"left: {process}" for process in site.processes()]
    finally:
        site.end()
    calm.dvc("repro")
    for name in ("dvc.lock", "runs/toy/small/metrics.json"):
        if (calm.folder / name).read_bytes() != (stormy.folder / name).read_bytes():
            problems.append(f"{name} is another")
    problems += [f"locked: {path}" for path in site.locks()]
    problems += repeated(stormy.folder)
    print(f"{count} faults, {updates} updates: " + ("; ".join(problems) or "the same dvc.lock, nothing left, all states true"))
    return not problems


def projects(top: Path, updates: int) -> tuple[Project, Project]:
    """Two equal ones, of which nothing has been run."""
    (top / "home").mkdir()
    calm = Project.made(top / "calm", environment(top / "home"))
    copy_deployments(ROOT, calm.folder)
    calm.change("variants.small.train.updates", updates)
    calm.change("variants.small.train.checkpoint_every", EVERY)
    shutil.copytree(calm.folder, top / "stormy")
    return calm, Project(top / "stormy", calm.environment)


def suffer(site: Site, run: str | None, fault: Fault, chance: random.Random) -> tuple[str | None, str, list[str]]:
    """Disturb a run: this one, or a new one. Returns it where it goes on, a line that tells it, and what was not as it should be."""
    site.ensure_runner(False)
    early = chance.random() < 0.2 and fault.of == "flow" and run is None
    run = run or site.ask()
    before = last_saved(site.project)
    wait_until(lambda: site.state(run)["type"] in FINAL or site.running(run) and (early or bool(site.part("stage"))), "no stage", PATIENCE)
    assert site.running(run), "the training has ended before: give it more --updates"
    if not early:
        wait_until(lambda: last_saved(site.project) > before or not site.part("flow"), "nothing is saved", PATIENCE)
    time.sleep(moment(chance))
    at = last_saved(site.project)
    fault.happen(site, run)
    began = time.monotonic()
    told = f"{fault.name:35} at {at:5}: "
    if not fault.states:
        at = last_saved(site.project)
        wait_until(lambda: last_saved(site.project) > at or not site.part("flow"), "nothing is saved", PATIENCE)
        state = site.state(run)
        going_on = state["type"] == "RUNNING"
        return run if going_on else None, told + state["name"].lower(), [] if going_on else [f"the run does not go on: {state['message']}"]
    gone(site, fault)
    over = time.monotonic() - began
    state = site.ended(run, PATIENCE)
    shown = time.monotonic() - began
    site.ensure_runner(fault.ends_runner)
    problems = []
    if state not in fault.states:
        problems.append(f"the state is {state}: {site.state(run)['message']}")
    if shown > SHOWN_SECONDS:
        problems.append(f"shown after {shown:.0f} s")
    if over > SAVED_SECONDS:
        problems.append(f"ended after {over:.0f} s")
    return None, f"{told}{state.lower():9} after {shown:3.0f} s, ended after {over:2.0f} s", problems


def gone(site: Site, fault: Fault) -> None:
    """Wait until nothing of the run is at work any more."""
    wait_until(lambda: not any(site.part(name) for name in ("flow", "guard", "dvc", "stage")), f"{fault.name}: something goes on", 90)


def repeated(folder: Path) -> list[str]:
    """Stages whose work was done more than once, of all outputs that the flows have kept."""
    done: dict[str, int] = {}
    for log in (folder / ".scratch/logs").glob("*/*.log"):
        text = log.read_text(errors="replace")
        if "Updating lock file" in text and re.search(r"^Running stage", text, re.M):
            done[log.stem] = done.get(log.stem, 0) + 1
    return [f"{stage} was run {times} times" for stage, times in done.items() if times > 1]


if __name__ == "__main__":
    main()
