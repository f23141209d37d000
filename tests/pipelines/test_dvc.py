"""pipelines.dvc against real DVC: what has to run, one stage, its output, its end."""

import re
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipelines import dvc
from tests.pipelines.toy import Toy, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's own, of the tries it keeps its outputs in


def stages(targets: list[str]) -> list[str]:
    return [step.stage for step in dvc.plan(targets)]


def test_a_fresh_pipeline_is_planned_whole_and_in_the_order_of_dvc(fresh: Toy, done: Path) -> None:
    steps = dvc.plan([])
    assert {step.stage: set(step.after) for step in steps} == {
        "prepare": set(),
        "train@a": {"prepare"},
        "train@b": {"prepare"},
        "score": {"train@a", "train@b"},
        "other": set(),
    }
    order = re.findall(r"^  ([\w@]+):$", (done / "dvc.lock").read_text(), re.M)  # each stage was added when it had run
    assert [step.stage for step in steps] == order


def test_what_changed_and_all_that_comes_after_it_is_planned(toy: Toy) -> None:
    assert dvc.plan([]) == []
    toy.set("b: {x: 2}", "b: {x: 3}")
    assert dvc.plan([]) == [dvc.Step("train@b", ()), dvc.Step("score", ("train@b",))]
    assert stages(["train"]) == ["train@b"]
    assert stages(["train@a", "other"]) == []


def test_a_target_stands_for_all_that_it_is_made_from(fresh: Toy) -> None:
    assert dvc.plan(["train@a"]) == [dvc.Step("prepare", ()), dvc.Step("train@a", ("prepare",))]


def test_a_target_that_does_not_exist_is_named_in_one_line(toy: Toy) -> None:
    with pytest.raises(dvc.DvcError, match=r"\A.*'nosuch' not found.*\Z"):
        dvc.plan(["nosuch"])


def test_a_pipeline_that_dvc_cannot_read_is_explained_in_one_line(toy: Toy) -> None:
    Path("dvc.yaml").write_text(toy.read("dvc.yaml").replace("outs: [others]", "outs: [prepared]"))
    with pytest.raises(dvc.DvcError, match=r"\A.*'prepared' is specified in.*\Z"):
        dvc.plan([])


def test_a_stage_that_another_process_runs_is_named_with_what_stops_it(
    toy: Toy, children: dvc.Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc, "PATIENCE", 0.5)
    toy.set("a: {x: 1}", "a: {x: 3}")
    toy.touch("train-a.hold")
    running = toy.start("dvc", "repro", "-s", "train@a")
    toy.wait_for("train-a.started")

    assert stages(["train@b"]) == []
    with pytest.raises(dvc.DvcError) as caught:
        dvc.plan([])
    log = Path("train.log")
    child = children.start("train@a", log)
    assert child is not None and list(dvc.follow(child, log)) and child.returncode != 0
    for sentence in (str(caught.value), dvc.busy(log.read_text())):
        assert sentence is not None and sentence.startswith("model-a is in use by ") and f"(process {running.pid})" in sentence
        assert "\n" not in sentence

    subprocess.run(str(caught.value).rpartition(": ")[2], shell=True, check=True)  # the advice, taken
    running.communicate()
    assert Path("train-a.saved").exists()
    assert stages([]) == ["train@a", "score"]


@pytest.mark.parametrize(
    "log", ["ERROR: failed to reproduce 'train@a': failed to run: x, exited with 1\n", "the GPU 'x' is busy, it is\n", ""]
)
def test_a_stage_that_fails_by_itself_is_not_called_busy(log: str) -> None:
    assert dvc.busy(log) is None


def test_lines_are_followed_while_the_child_runs_and_redrawn_ones_shown_once(tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    script = rf"printf 'epoch 1\n 10%%\r 50%%\r'; until [ -e {go} ]; do sleep 0.02; done; printf '100%%\r\n\xff\n\nlast'"
    with log.open("wb") as output:
        child = subprocess.Popen(["bash", "-c", script], stdout=output)
    lines = dvc.follow(child, log)
    assert next(lines) == "epoch 1"
    time.sleep(2 * dvc.POLL)
    assert child.poll() is None
    go.touch()
    assert list(lines) == ["100%", "�", "", "last"]


def test_stop_lets_the_stage_save_and_dvc_give_its_locks_back(fresh: Toy, children: dvc.Children) -> None:
    fresh.touch("prepare.hold")
    log = Path("logs/prepare.log")
    child = children.start("prepare", log)
    assert child is not None
    wait_until(lambda: "waiting" in log.read_text(), "the stage's output does not come at once")
    children.stop(grace=60)
    assert "saved" in "".join(dvc.follow(child, log))
    assert child.returncode not in (0, 128 + signal.SIGKILL)
    assert Path("prepare.saved").exists()
    assert fresh.read(".dvc/tmp/rwlock") == "{}"
    assert children.start("other", Path("logs/other.log")) is None
    wait_until(lambda: fresh.processes() == [], "something is left")


def test_a_plan_waits_for_a_stage_that_a_dead_flow_has_left(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.set("a: {x: 1}", "a: {x: 3}")
    toy.touch("train-a.hold")
    running = toy.start("dvc", "repro", "-s", "train@a")
    toy.wait_for("train-a.started")
    sleep = time.sleep
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", lambda seconds: (Path("train-a.hold").unlink(missing_ok=True), sleep(seconds)))
        assert stages(["train"]) == []
    assert capsys.readouterr().err.startswith("waiting up to 30 seconds: model-a is in use by ")
    running.communicate()


def test_a_scratch_folder_in_use_is_no_failure_of_the_stage() -> None:
    log = "error: .scratch/train/6f1c is in use by process 7, since 2026-01-01 10:00:00: wait until it ends, or stop it\nERROR: failed to"
    assert dvc.busy(log) == log.partition("\n")[0].removeprefix("error: ")


def test_a_stage_runs_with_the_python_of_the_flow(fresh: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fresh.folder / "bin" / "python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{fresh.environment['PATH']}")
    with closing(dvc.Children()) as children:
        child = children.start("prepare", Path("log"))
    assert child is not None
    output = list(dvc.follow(child, Path("log")))
    assert child.returncode == 0, output


def test_last_lines_are_those_of_the_whole_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + 5000 * b" 10%\r" + b"100%\nlast\n")
    assert dvc.last_lines(log, 2) == ["100%", "last"]
    log.write_bytes(b"one\n\nthree")
    assert dvc.last_lines(log, 9) == ["one", "", "three"]


def test_stop_kills_the_whole_group_of_a_stage_that_does_not_end(fresh: Toy, children: dvc.Children) -> None:
    fresh.touch("prepare.hold", "prepare.deaf")
    child = children.start("prepare", Path("prepare.log"))
    assert child is not None
    fresh.wait_for("prepare.started")
    family = fresh.processes()
    assert family
    children.stop(grace=0.5)
    assert child.returncode == 128 + signal.SIGKILL
    wait_until(lambda: not any(process.is_running() for process in family), "the stage lives on")


def test_metrics_are_a_table_once_there_are_some(toy: Toy) -> None:
    assert "| metrics.json | 27.3" in dvc.metrics_table()
    Path("metrics.json").unlink()
    assert dvc.metrics_table() == ""
