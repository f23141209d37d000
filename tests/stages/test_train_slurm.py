"""The stage `train` with LAUNCHER=slurm, on a real cluster: the bytes of a training on this machine, whatever becomes of job and client."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.copy_task import (
    HARDWARE,
    PROJECT,
    STAGE,
    at_work,
    last_saved,
    outs,
    start,
    trained_here,
    wait,
    wait_for,
    write_corpus,
    write_params,
)
from tests.slurm_cluster import cluster

TRAIN = dict(updates=200, checkpoint_every=10)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a training on this machine leaves behind, in one process."""
    return trained_here(tmp_path_factory.mktemp("local"), **TRAIN)


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster() as environment:
        yield environment


@pytest.fixture
def project(tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with shards and parameters, and Slurm as launcher. Afterwards no job is left."""
    for name, value in {**slurm, "LAUNCHER": "slurm"}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    write_corpus(folder / "shards")
    params(folder)
    yield folder
    ask("scancel", f"--user={os.geteuid()}")
    wait(lambda: not ask("squeue", "--noheader"), seconds=100)
    assert at_work(folder) == []


def params(folder: Path, nodes: int = 1, processes: int | str = 1, train: dict[str, Any] = TRAIN, **wishes: Any) -> None:
    hardware = {**HARDWARE, "processes": processes, "patience": 60, "slurm": {"nodes": nodes, **wishes}}
    write_params(folder, hardware=hardware, **train)


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def jobs() -> list[str]:
    """Number and name of the jobs that wait, run or are ending."""
    return ask("squeue", "--noheader", "--format=%A %j %T").splitlines()


def working(folder: Path, rank: bool) -> int:
    """How many processes of the stage work in `folder` that are ranks, or that are not."""
    found = 0
    for process in map(psutil.Process, at_work(folder)):
        with suppress(psutil.Error):  # ended meanwhile
            found += process.cmdline()[1:3] == ["-m", "stages.train"] and ("RANK" in process.environ()) == rank
    return found


def followed(folder: Path) -> tuple[int, str]:
    """Exit code and output of the stage in `folder`."""
    process = start(folder, *STAGE)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def resumed(output: str) -> list[int]:
    return [int(update) for update in re.findall(r"^train: goes on from update (\d+) ", output, re.M)]


def test_two_nodes_leave_the_bytes_of_this_machine(project: Path, local: dict[str, bytes]) -> None:
    params(project, nodes=2, processes="auto", gpus_per_node=1)
    process = start(project, *STAGE)
    wait_for(project, 10, process)
    [training] = (project / ".scratch" / "train").iterdir()
    [(number, name, _)] = [job.split() for job in jobs()]
    assert name == training.name
    assert working(project, rank=True) == 2
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert outs(project) == local and len(local) > 2
    assert f"Slurm job {number}: running" in output and output.count("train: 200/200 updates") == 1
    code, output = followed(project)
    assert code == 0 and outs(project) == local and "Slurm job" not in output, "a finished training needs no job"


def test_stopped_and_cancelled_it_saves_and_the_next_run_goes_on(project: Path, local: dict[str, bytes]) -> None:
    params(project, processes=2)
    reached = 0
    for number in (signal.SIGINT, None):
        process = start(project, *STAGE)
        wait_for(project, reached // 10 * 10 + 10, process)
        if number:
            process.send_signal(number)
            process.send_signal(number)
        else:
            ask("scancel", jobs()[0].split()[0])
        output, _ = process.communicate(timeout=300)
        [stopped] = map(int, re.findall(r"^stopped at update (\d+), which is saved: ", output, re.M)[:1])
        assert last_saved(project) == stopped > reached and resumed(output) == [reached] * (reached > 0)
        assert at_work(project) == [] and outs(project) == {} and "Traceback" not in output
        if number:
            assert process.returncode == 128 + number
        else:
            ended = r"^error: Slurm job \d+ ended as CANCELLED; the last lines of .*/slurm-\d+\.log:$"
            assert process.returncode == 2 and re.search(ended, output, re.M)
        reached = stopped
    code, output = followed(project)
    assert code == 0 and resumed(output) == [reached]
    assert outs(project) == local


def test_a_job_that_is_queued_again_goes_on_under_the_same_client(project: Path, local: dict[str, bytes]) -> None:
    process = start(project, *STAGE)
    wait_for(project, 10, process)
    [number] = [job.split()[0] for job in jobs()]
    ways = {
        "requeued": ("scontrol", "requeue", number),
        "preempted": ("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"),
        "near the end of its time": ("scancel", "--batch", "--signal=USR1", number),  # what Slurm does that many seconds before
    }
    [log] = project.glob(f".scratch/train/*/slurm-{number}.log")
    for times, command in enumerate(ways.values()):
        wait(lambda times=times: log.read_text().count("train: goes on from update") == times, process)
        wait_for(project, last_saved(project) + 1, process)
        ask(*command)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(resumed(output)) == 3 and resumed(output) == sorted(set(resumed(output)))
    assert output.count(f"Slurm job {number}: completed") == 1
    assert outs(project) == local


def test_a_client_that_is_killed_leaves_the_job_and_the_next_one_follows_it(project: Path, local: dict[str, bytes]) -> None:
    """`sh` stands for DVC, which is killed too: what counts is that the parent is gone without a word."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DVC_STAGE": "train@toy"}
    command = f"{sys.executable} -m {' '.join(STAGE)} > log 2>&1; true"
    dvc = subprocess.Popen(["sh", "-c", command], cwd=project, env=environment, start_new_session=True)
    wait_for(project, 10)
    [job] = jobs()
    dvc.kill()
    dvc.wait()
    wait(lambda: working(project, rank=False) == 0)
    assert working(project, rank=True) == 1
    code, output = followed(project)
    assert code == 0 and "goes on" not in output, "one training, from its beginning to its end"
    assert outs(project) == local
    [log] = project.glob(".scratch/train/*/slurm-*.log")
    assert log.stem == f"slurm-{job.split()[0]}" and log.read_text().count("train: 200/200 updates") == 1


def test_two_stages_at_once_queue_as_slurm_decides(project: Path, local: dict[str, bytes]) -> None:
    other = project.with_name("other")
    shutil.copytree(project, other)
    params(project, options=["--exclusive", "--nodelist=n1"])
    params(other, options=["--exclusive", "--nodelist=n1"], train={**TRAIN, "warmup_updates": 30})
    clients = [start(folder, *STAGE) for folder in (project, other)]
    wait(lambda: sorted(job.split()[2] for job in jobs()) == ["PENDING", "RUNNING"])
    outputs = [client.communicate(timeout=300)[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], outputs
    assert outs(project) == local and outs(other) and outs(other) != local


def test_a_job_told_another_end_is_followed_by_one_to_the_right_end(project: Path, local: dict[str, bytes]) -> None:
    params(project, train={**TRAIN, "updates": 60})
    first = start(project, *STAGE)
    wait_for(project, 10, first)
    params(project)
    code, output = followed(project)
    assert code == 0 and resumed(output) == [60], output
    assert outs(project) == local
    first.communicate(timeout=300)


def test_parameters_edited_while_the_job_waits_are_refused(project: Path) -> None:
    params(project, options=["--hold"])
    client = start(project, *STAGE)
    wait(lambda: jobs() != [], client)
    params(project, train={**TRAIN, "warmup_updates": 30})
    ask("scontrol", "release", jobs()[0].split()[0])
    output, _ = client.communicate(timeout=300)
    error = output[output.index("error: Slurm job") :]
    ended = r"error: Slurm job \d+ ended as FAILED \(NonZeroExitCode\); the last lines of \S+/slurm-\d+\.log:\n"
    assert client.returncode == 2 and re.match(ended, error)
    assert re.search(r"error: parameters, data or code are not those for which Slurm job \d+ was queued", error)
    assert outs(project) == {} and last_saved(project) == 0 and len(list((project / ".scratch" / "train").iterdir())) == 1
