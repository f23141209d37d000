"""The nursery: what it forks is looked after whoever is killed, and a nursery that is lost is started again."""

from pathlib import Path

import psutil

from pipelines import dvc, nursery
from tests.pipelines.toy import Toy, wait_until

LOG = Path("log")


def own(name: str) -> psutil.Process:
    """The one process below this one that is called so."""
    (found,) = [process for process in psutil.Process().children(recursive=True) if process.name() == name]
    return found


def the_nursery() -> psutil.Process:
    (found,) = [process for process in psutil.Process().children() if "pipelines.nursery" in process.cmdline()]
    return found


def test_a_killed_nursery_takes_nothing_with_it_and_the_next_call_starts_another(fresh: Toy, children: dvc.Children) -> None:
    fresh.touch("prepare.hold")
    first = children.start("prepare", LOG)
    fresh.wait_for("prepare.started")
    killed = the_nursery()
    killed.kill()
    wait_until(lambda: killed.status() == psutil.STATUS_ZOMBIE, "it lives")
    other = children.start("other", Path("another"))
    assert other is not None and other.wait(60) == 0
    assert the_nursery() != killed
    assert first is not None and first.poll() is None
    Path("prepare.hold").unlink()
    assert first.wait(60) == 0
    assert sorted(fresh.ran()) == ["other", "prepare"]


def test_a_call_whose_guard_is_killed_is_lost(fresh: Toy, children: dvc.Children) -> None:
    fresh.touch("prepare.hold")
    call = children.start("prepare", LOG)
    fresh.wait_for("prepare.started")
    own("guard").kill()
    assert call is not None and call.wait(60) == nursery.LOST


def test_each_call_reads_the_pipeline_as_it_is_and_has_its_own_folder_environment_and_code(fresh: Toy, children: dvc.Children) -> None:
    """Though all are forks of one process that has read it before."""
    for text, code in (("one", 0), ("two", 0), ("three", 255)):
        end = "exit 7" if code else "true"
        Path("dvc.yaml").write_text(f"stages:\n  {text}:\n    cmd: echo $WORD-{text} > {text} && {end}\n    outs: [{text}]\n")
        call = children.start(text, LOG, environment={"WORD": text})
        assert call is not None and call.wait(60) == code, LOG.read_text()
        assert Path(text).read_text() == f"{text}-{text}\n"
