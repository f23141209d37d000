"""What is lost while a flow runs below a real server and runner: the state is true, the stage saves, nothing goes on, the next run does."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.conftest import PROJECT
from tests.pipelines.faults import FAULTS, Fault, Site, copy_deployments
from tests.pipelines.toy import Toy, wait_until

pytestmark = pytest.mark.slow

HEARD = ("cancel", "SIGKILL of the flow", "SIGTERM of the runner", "Ctrl-C of the runner")
UNHEARD = "SIGKILL of the machine"
MARKED = 120  # seconds, within which the server finds a run that is dead


@pytest.fixture
def site(fresh: Toy, tmp_path: Path) -> Iterator[Site]:
    """A server, and the toy pipeline of which nothing has been run. Afterwards nothing of them runs."""
    copy_deployments(PROJECT, fresh.folder)
    site = Site(fresh.folder, tmp_path / "prefect", fresh.environment)
    try:
        site.start_server()
        yield site
    finally:
        site.end()


def suffer(site: Site, toy: Toy, fault: Fault) -> float:
    """Have the fault happen while a stage works. Returns the seconds until Prefect showed it."""
    for name in ("started", "saved"):
        Path(f"train-a.{name}").unlink(missing_ok=True)
    site.ensure_runner(False)
    run = site.ask()
    toy.wait_for("train-a.started")
    fault.happen(site, run)
    wait_until(lambda: not any(site.part(name) for name in ("flow", "guard", "dvc", "stage")), f"{fault.name}: something goes on", 30)
    assert Path("train-a.saved").exists() or fault.name == UNHEARD
    began = time.monotonic()
    assert site.ended(run) in fault.states, site.state(run)
    seconds = time.monotonic() - began
    site.ensure_runner(fault.ends_runner)
    return seconds


def test_whatever_is_lost_the_state_is_true_and_the_next_run_goes_on_and_runs_nothing_twice(site: Site, fresh: Toy, done: Path) -> None:
    fresh.touch("train-a.hold")
    faults = [fault for fault in FAULTS if fault.name in HEARD]
    random.Random(1).shuffle(faults)
    for fault in faults:
        assert suffer(site, fresh, fault) < 30
    (unheard,) = [fault for fault in FAULTS if fault.name == UNHEARD]
    never_begun = site.taken_up()
    assert suffer(site, fresh, unheard) < MARKED
    assert site.ended(never_begun, seconds=5) == "CRASHED"

    Path("train-a.hold").unlink()
    assert site.ended(site.ask()) == "COMPLETED"
    assert fresh.ran() == ["prepare", "train-a", "train-b", "score", "other"]
    assert fresh.read("dvc.lock") == (done / "dvc.lock").read_text()
    assert site.locks() == []
    wait_until(lambda: not site.part("flow"), "the flow does not end")
    assert site.runner is not None
    site.runner.terminate()
    site.runner.wait(timeout=60)
    assert fresh.processes() == []
    assert len(site.api("automations/filter", {})) == 2  # of six runners
