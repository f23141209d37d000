"""The stage `train` as several processes: the same bytes as one, and no fault of one leaves the others behind."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nmt.symbols import UNKNOWN
from tests.copy_task import (
    FIRST,
    HARDWARE,
    PROJECT,
    STAGE,
    TOKENIZER,
    VOCAB,
    at_work,
    last_saved,
    outs,
    run,
    start,
    wait,
    wait_for,
    write_corpus,
    write_params,
)
from tests.shards import write_shards

SHORT = dict(updates=30, checkpoint_every=10, microbatches=4)
TORCHRUN = ("torch.distributed.run", "--standalone", "--max-restarts", "0", "--nproc-per-node")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process leaves behind after the updates of SHORT."""
    folder = tmp_path_factory.mktemp("alone")
    write_corpus(folder / "project" / "shards")
    return undisturbed(folder / "project")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with shards. Afterwards nothing that was started there may run."""
    folder = tmp_path / "project"
    write_corpus(folder / "shards")
    yield folder
    for pid in at_work(folder):
        os.kill(pid, signal.SIGKILL)


def params(folder: Path, processes: int | str, seconds: float = 60, **train: int) -> None:
    write_params(folder, hardware={**HARDWARE, "processes": processes, "patience": seconds}, **{**SHORT, **train})


def ranks(launcher: int) -> list[int]:
    """Ids of the processes that the launcher started, by rank."""
    found = {child.environ().get("RANK"): child.pid for child in psutil.Process(launcher).children()}
    return [found[str(rank)] for rank in range(len(found)) if str(rank) in found]


def undisturbed(project: Path, **train: int) -> dict[str, bytes]:
    """What one process that nobody disturbs leaves behind, in a folder beside."""
    other = project.with_name("undisturbed")
    shutil.copytree(project / "shards", other / "shards")
    params(other, 1, **train)
    code, output = run(other, *STAGE)
    assert code == 0, output
    return outs(other)


def test_patience_ends_all_processes_at_the_same_update(project: Path) -> None:
    write_shards([([FIRST], [UNKNOWN] * 3)] * 4, project / "shards" / "valid", VOCAB, TOKENIZER)  # what is never right in training
    ending = dict(updates=60, checkpoint_every=2, checkpoints_kept=2, patience=1)
    expected = undisturbed(project, **ending)
    assert len(expected["training.tsv"].splitlines()) < 60
    params(project, 2, **ending)
    code, output = run(project, *STAGE)
    assert code == 0 and re.search(r"train: ends at update \d+, for the valid loss of 1 checkpoints was no better", output), output
    assert outs(project) == expected


@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.essential), 4])
def test_any_number_of_processes_leaves_the_bytes_of_one(project: Path, alone: dict[str, bytes], processes: int) -> None:
    params(project, processes)
    code, output = run(project, *STAGE)
    assert code == 0, output
    assert outs(project) == alone and len(alone) > 2
    assert output.count("train: 30/30 updates") == 1, "one process reports"
    assert at_work(project) == []


def test_torchrun_on_the_command_line_starts_the_same_training(project: Path, alone: dict[str, bytes]) -> None:
    params(project, "auto")
    code, output = run(project, *TORCHRUN, "2", "-m", *STAGE)
    assert code == 0, output
    assert outs(project) == alone


def test_two_machines_are_two_launchers_that_meet(project: Path, alone: dict[str, bytes]) -> None:
    params(project, "auto")
    meet = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29713", "--local-addr", "localhost")
    machines = [start(project, "torch.distributed.run", *meet, "--nproc-per-node", "2", "-m", *STAGE) for _ in range(2)]
    outputs = [machine.communicate(timeout=120)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], outputs
    assert outs(project) == alone


def test_stopped_and_resumed_with_another_number_of_processes_it_ends_with_the_same_bytes(project: Path) -> None:
    updates = dict(updates=400, checkpoint_every=100)
    expected = undisturbed(project, **updates)
    reached = 0
    for processes, number in ((2, signal.SIGINT), (4, signal.SIGTERM)):
        params(project, processes, **updates)
        process = start(project, *STAGE)
        wait_for(project, (reached // 100 + 1) * 100, process)
        process.send_signal(number)
        process.send_signal(number)
        output, _ = process.communicate(timeout=40)
        assert process.returncode == 128 + number and "Traceback" not in output, output
        [stopped] = re.findall(r"^stopped at update (\d+), which is saved: the same command goes on from there$", output, re.M)
        assert last_saved(project) == int(stopped) > reached and at_work(project) == [] and outs(project) == {}
        reached = int(stopped)
    params(project, 1, **updates)
    code, output = run(project, *STAGE)
    assert code == 0 and f"goes on from update {reached} " in output
    assert outs(project) == expected


@pytest.mark.essential
def test_whatever_is_killed_nothing_goes_on_and_the_next_run_ends_with_the_same_bytes(project: Path) -> None:
    updates = dict(updates=600, checkpoint_every=5)
    expected = undisturbed(project, **updates)
    params(project, 2, **updates)
    chance, reached = random.Random(3), 0
    for victim in ("launcher", "rank 0", "rank 1", "all", "launcher"):
        process = start(project, *STAGE)
        wait_for(project, reached + 1, process)
        time.sleep(chance.random() / 3)
        found = {"launcher": process.pid, **{f"rank {rank}": pid for rank, pid in enumerate(ranks(process.pid))}}
        assert set(found) == {"launcher", "rank 0", "rank 1"}, "it was too fast to be killed"
        for name, pid in found.items():
            if victim in ("all", name):
                os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        if victim.startswith("rank"):
            assert process.returncode == 1 and re.search(rf"^error: process {victim[-1]} of 2 was ended by SIGKILL: ", output, re.M), output
        wait(lambda: at_work(project) == [], seconds=30)
        assert last_saved(project) > reached and outs(project) == {}
        reached = last_saved(project)
    code, output = run(project, *STAGE)
    assert code == 0 and f"goes on from update {reached} " in output
    assert outs(project) == expected
    assert not list(project.rglob("*.part")) and not list(project.rglob("*.old"))


def broken(project: Path, line: str) -> None:
    """A module `broken` that is the stage, in which process 1 does `line` in update 3."""
    (project / "broken.py").write_text(
        f"""
import os, time
from nmt import training
from stages import train
from stages.command import run

apply = training.Trainer.apply

def faulty(self, of):
    if os.environ["RANK"] == "1" and self.state.step == 2:
        {line}
    return apply(self, of)

training.Trainer.apply = faulty
run(train.main)
"""
    )


def test_a_process_that_raises_ends_all_with_its_traceback(project: Path) -> None:
    params(project, 2)
    broken(project, "raise ZeroDivisionError('in the middle')")
    began = time.monotonic()
    code, output = run(project, *TORCHRUN, "2", "-m", "broken", *STAGE[1:])
    assert code == 1 and "ZeroDivisionError: in the middle" in output and time.monotonic() - began < 40
    assert output.count("error: process 0 ends in update 3, for process 1 is gone") == 1, output
    assert at_work(project) == [] and outs(project) == {}


def test_a_process_that_hangs_is_named_with_the_update(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    params(project, 2, seconds=3)
    broken(project, "time.sleep(100)")
    code, output = run(project, *TORCHRUN, "2", "-m", "broken", *STAGE[1:])
    assert (
        code == 1
        and "error: process 0 ends in update 3, for process 1 has not come that far within the seconds of hardware.patience" in output
    ), output
    assert at_work(project) == [] and outs(project) == {}


def test_updates_with_fewer_pairs_than_processes(project: Path) -> None:
    updates = dict(tokens_per_update=8)  # one to four pairs
    expected = undisturbed(project, **updates)
    params(project, 4, **updates)
    code, output = run(project, *STAGE)
    assert code == 0, output
    assert outs(project) == expected


def test_an_unknown_launcher_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER", "slurn")
    params(project, 1)
    code, output = run(project, *STAGE)
    assert (code, output) == (2, "error: LAUNCHER is slurn, but known are local, slurm, kubernetes\n")


def test_a_number_of_processes_that_cannot_share_the_pieces_is_refused(project: Path) -> None:
    params(project, 3)
    code, output = run(project, *STAGE)
    assert (code, output) == (
        2,
        "error: 3 processes cannot share the 4 pieces of an update evenly: make hardware.processes one of 1, 2, 4, "
        "or train.microbatches a multiple of 3\n",
    )


def test_a_stage_ends_and_saves_when_dvc_is_killed(project: Path) -> None:
    """`sh` stands for DVC here: what counts is that the parent is gone without a word."""
    params(project, 2, updates=1500)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DVC_STAGE": "train@toy"}
    command = f"{sys.executable} -m {' '.join(STAGE)} > log 2>&1; true"
    parent = subprocess.Popen(["sh", "-c", command], cwd=project, env=environment, start_new_session=True)
    wait_for(project, 10)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait(lambda: at_work(project) == [], seconds=30)
    [stopped] = re.findall(r"^stopped at update (\d+), which is saved", (project / "log").read_text(), re.M)
    assert last_saved(project) == int(stopped) < 1500
