"""`python -m pipelines.repro` as people call it: a process of its own, real DVC, real Prefect."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.pipelines.toy import Toy, wait_until

FLOW = "pipelines.repro"


@pytest.fixture
def with_server(toy: Toy, server: dict[str, str]) -> Toy:
    toy.environment = toy.environment | server
    return toy


def test_nothing_to_do_ends_without_a_server(toy: Toy) -> None:
    toy.environment = toy.environment | {"PREFECT_HOME": str(toy.folder / "prefect")}
    code, output = toy.run(FLOW)
    assert code == 0
    assert output == "nothing to do: every stage is up to date with dvc.lock\n"
    assert not Path("prefect/prefect.db").exists()
    assert not Path(".scratch").exists()


def test_wrong_parameters_stop_before_any_work_with_the_message_and_code_of_the_check(toy: Toy) -> None:
    Path("stages/check.py").write_text("import sys\nprint('error: unknown parameter m', file=sys.stderr)\nsys.exit(2)\n")
    toy.set("n: 1", "n: 2")
    assert toy.run(FLOW) == (2, "error: unknown parameter m\n")
    assert toy.ran() == []


def test_a_target_that_does_not_exist_is_a_sentence_and_code_2(toy: Toy) -> None:
    code, output = toy.run(FLOW, "nosuch")
    assert code == 2
    assert output.startswith("error: ") and output.count("\n") == 1 and "nosuch" in output


@pytest.mark.slow
@pytest.mark.essential
def test_a_real_ctrl_c_lets_the_stage_save_and_the_next_call_ends_with_the_lock_of_dvc(fresh: Toy, done: Path) -> None:
    """With Prefect's temporary server, which is of the terminal's process group as the flow is."""
    fresh.touch("train-a.hold")
    flow = fresh.start(FLOW)
    fresh.wait_for("train-a.started")
    os.killpg(flow.pid, signal.SIGINT)
    began = time.monotonic()
    output, _ = flow.communicate()
    assert flow.returncode == 130, output
    assert time.monotonic() - began < 30  # minutes, were the server to hear the signal
    assert output.count("waiting") <= 1  # of the hundred times that the line was drawn
    assert Path("train-a.saved").exists()
    assert fresh.processes() == []
    assert fresh.ran() == ["prepare"]
    assert fresh.read(".dvc/tmp/rwlock") == "{}"

    Path("train-a.hold").unlink()
    code, output = fresh.run(FLOW)
    assert code == 0, output
    assert fresh.ran() == ["train-a", "train-b", "score", "other"]
    assert fresh.read("dvc.lock") == (done / "dvc.lock").read_text()
    assert fresh.processes() == []


@pytest.mark.slow
def test_what_changed_and_what_comes_after_it_is_run_as_dvc_would(with_server: Toy, tmp_path: Path) -> None:
    toy = with_server
    toy.set("b: {x: 2}", "b: {x: 3}")
    twin = Toy(tmp_path / "twin", toy.environment)
    shutil.copytree(toy.folder, twin.folder)
    assert twin.run("dvc", "repro")[0] == 0

    code, output = toy.run(FLOW, "train@a")
    assert (code, toy.ran()) == (0, []), output
    code, output = toy.run(FLOW)
    assert code == 0, output
    assert toy.ran() == twin.ran() == ["train-b", "score"]
    assert toy.read("dvc.lock") == twin.read("dvc.lock")
    request = Request(f"{toy.environment['PREFECT_API_URL']}/artifacts/filter", b"{}", {"Content-Type": "application/json"})
    left = [artifact for artifact in json.load(urlopen(request)) if artifact["key"] == "metrics"]  # by other tests' flows too
    assert "| metrics.json | 27.3" in max(left, key=lambda artifact: artifact["created"])["data"]


@pytest.mark.slow
def test_a_failing_stage_is_shown_and_what_does_not_depend_on_it_still_runs(with_server: Toy) -> None:
    toy = with_server
    toy.set("a: {x: 1}", "a: {x: 3}")
    toy.set("b: {x: 2}", "b: {x: 3}")
    toy.touch("train-a.fail")
    code, output = toy.run(FLOW)
    assert code == 1
    assert toy.ran() == ["train-b"]
    assert "failed: train@a; not run: score" in output
    assert output.count("Running stage 'train@a'") == 2  # followed once, shown once at the end: not tried again
    assert "Traceback" not in output
    (log,) = Path(".scratch/logs").glob("*/train@a.log")
    assert f"train@a failed, its output is in {log}\n" in output
    assert "error: no good data in line 7\n" in log.read_text()

    Path("train-a.fail").unlink()
    assert toy.run(FLOW)[0] == 0
    assert toy.ran() == ["train-a", "score"]


@pytest.mark.slow
def test_sigterm_lets_the_stage_save_even_when_sigint_was_ignored_by_the_caller(with_server: Toy) -> None:
    """A job that a script starts with `&` inherits that SIGINT is ignored, and the stages would in turn."""
    toy = with_server
    toy.set("a: {x: 1}", "a: {x: 3}")
    toy.touch("train-a.hold")
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    flow = toy.start(FLOW)
    signal.signal(signal.SIGINT, previous)
    toy.wait_for("train-a.started")
    flow.terminate()
    output, _ = flow.communicate()
    assert flow.returncode == 143, output
    assert Path("train-a.saved").exists()
    assert toy.processes() == []
    Path("train-a.hold").unlink()
    assert toy.run(FLOW)[0] == 0
    assert toy.ran() == ["train-a", "score"]


@pytest.mark.slow
def test_when_the_flow_is_killed_its_server_ends_and_the_stage_saves_and_the_next_flow_goes_on(toy: Toy) -> None:
    """With Prefect's temporary server."""
    toy.set("a: {x: 1}", "a: {x: 3}")
    toy.touch("train-a.hold")
    flow = toy.start(FLOW)
    toy.wait_for("train-a.started")
    assert any("uvicorn" in process.cmdline() for process in toy.processes())
    flow.kill()
    flow.communicate(timeout=60)
    wait_until(lambda: toy.processes() == [], "something outlives the flow", seconds=30)
    assert Path("train-a.saved").exists()
    assert toy.read(".dvc/tmp/rwlock") == "{}"

    Path("train-a.hold").unlink()
    code, output = toy.run(FLOW)
    assert code == 0, output
    assert toy.ran() == ["train-a", "score"]
    assert toy.processes() == []


@pytest.mark.slow
def test_a_stage_kept_out_by_another_process_is_tried_again(with_server: Toy) -> None:
    toy = with_server
    toy.set("n: 1", "n: 2")
    toy.touch("prepare.hold", "other.hold")
    flow = toy.start(FLOW)
    toy.wait_for("prepare.started")
    elsewhere = toy.start("dvc", "repro", "-s", "other")
    toy.wait_for("other.started")
    Path("prepare.hold").unlink()
    (log,) = Path(".scratch/logs").glob("*")
    wait_until(lambda: (log / "other.log").exists() and "is busy" in (log / "other.log").read_text(), "the flow was not kept out")
    Path("other.hold").unlink()
    elsewhere.communicate()
    output, _ = flow.communicate()
    assert flow.returncode == 0, output
    assert "others is in use by " in output
    assert sorted(toy.ran()) == ["other", "prepare"]  # once each; what comes after saw equal inputs, and DVC skipped it
