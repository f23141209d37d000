"""nmt.slurm: what a job is told and asks for, and what is said when Slurm does not do it. On a real cluster, with tiny jobs."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from nmt.config import parse
from nmt.errors import UserError
from nmt.hardware import SlurmConfig
from nmt.slurm import Job, SlurmError, find, submit
from tests.copy_task import at_work, wait
from tests.slurm_cluster import cluster

PROBE = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_NAME")
facts = {name: os.environ.get(name) for name in names}
with open(f"rank-{os.environ['RANK']}.json", "w") as file:
    json.dump({**facts, "node": os.environ["SLURMD_NODENAME"], "arguments": sys.argv[1:]}, file)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster() as environment:
        yield environment


@pytest.fixture
def folder(tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of the test and of its jobs, none of which is left afterwards. Its name means something to Slurm and to shells."""
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    here = tmp_path / "100 %j's"
    here.mkdir()
    monkeypatch.chdir(here)
    yield here
    subprocess.run(["scancel", f"--user={os.geteuid()}"], check=True)
    wait(lambda: find("work", here) is None, seconds=100)
    assert at_work(here) == [os.getpid()]


def wishes(**values: Any) -> SlurmConfig:
    return parse(SlurmConfig, values, "hardware.slurm")


def python(lines: str) -> list[str]:
    """Arguments of a Python that runs these lines."""
    Path("lines.py").write_text(lines)
    return ["lines"]


@pytest.mark.slow
def test_a_job_is_as_many_ranks_as_asked_for_described_as_torchrun_would(folder: Path) -> None:
    Path("probe.py").write_text(PROBE)
    words = ["a b", "it's", "$HOME", "50%", ""]
    job = submit(
        "work",
        ["probe", *words],
        wishes(nodes=2, gpus_per_node=2, cpus_per_process=2, memory="1", time="0:05:00", partition="high"),
        2,
        folder,
    )
    wait(lambda: job.state()[0] == "COMPLETED")
    ranks = [json.loads(Path(f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0", "1"] and [rank["node"] for rank in ranks] == ["n1", "n1", "n2", "n2"]
    for number, rank in enumerate(ranks):
        assert rank["RANK"] == str(number) and rank["WORLD_SIZE"] == "4" and rank["LOCAL_WORLD_SIZE"] == "2"
        assert rank["CUDA_VISIBLE_DEVICES"] == "0,1" and rank["SLURM_JOB_NAME"] == "work" and rank["arguments"] == words
        assert (rank["MASTER_ADDR"], rank["MASTER_PORT"]) == ("127.0.0.1", str(20000 + job.number))
    shown = subprocess.run(["scontrol", "show", "job", str(job.number)], capture_output=True, text=True, check=True).stdout
    for fact in ("Partition=high", "TimeLimit=00:05:00", "NumNodes=2", "CPUs/Task=2", "MinMemoryNode=1M", "TresPerNode=gres:gpu:2"):
        assert fact in shown
    assert job.log.is_file()


@pytest.mark.slow
def test_of_two_jobs_of_a_name_the_second_waits_until_the_first_has_ended(folder: Path) -> None:
    until = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.1)"
    first, second = (submit("work", python(until), wishes(), 1, folder) for _ in range(2))
    other = submit("other", ["this"], wishes(), 1, folder)
    assert find("work", folder) == first
    wait(lambda: other.state()[0] == "COMPLETED")
    assert second.state() == ("PENDING", "Dependency")
    Path("go").touch()
    wait(lambda: second.state()[0] == "COMPLETED")
    assert first.state() == ("COMPLETED", "") and find("work", folder) is None


@pytest.mark.slow
def test_a_failed_job_is_told_by_its_state_and_last_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = submit("work", python("import sys; print('\\n'.join(map(str, range(100)))); sys.exit('no good')"), wishes(), 1, folder)
    with pytest.raises(UserError, match=rf"^Slurm job {job.number} ended as FAILED \(NonZeroExitCode\); the last lines of ") as error:
        job.follow([])
    assert "no good" in str(error.value) and "\n    99\n" in str(error.value) and len(str(error.value).splitlines()) == 16
    assert "0\n1\n2\n3\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_job_that_never_began_has_no_log_to_show(folder: Path) -> None:
    job = submit("work", python(""), wishes(options=["--hold"]), 1, folder)
    assert job.state() == ("PENDING", "JobHeldUser")
    with pytest.raises(SystemExit) as stop:
        job.follow([signal.SIGTERM])
    assert stop.value.code == 128 + signal.SIGTERM and job.state()[0] == "CANCELLED"
    with pytest.raises(UserError, match=rf"^Slurm job {job.number} ended as CANCELLED.*; it wrote no {job.log}$"):
        job.follow([])
    forgotten = Job(999_999, job.log)
    assert forgotten.state() == ("FORGOTTEN", "")
    forgotten.follow([])  # what became of it, the caller can see from its work


@pytest.mark.slow
def test_what_slurm_refuses_is_said_in_its_words(folder: Path) -> None:
    for wish, words in (
        (wishes(partition="gpu"), "invalid partition specified: gpu"),
        (wishes(gpus_per_node=3), "Requested node configuration is not available"),
        (wishes(time="soon"), "Invalid --time specification"),
        (wishes(options=["--no-such-option"]), "unrecognized option '--no-such-option'"),
    ):
        with pytest.raises(SlurmError, match=f"^sbatch failed: .*{words}") as error:
            submit("work", python(""), wish, 1, folder)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_caller_within_a_job_asks_for_a_job_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1")  # which srun refuses beside a memory of the node
    monkeypatch.setenv("SLURM_NTASKS", "7")
    Path("probe.py").write_text(PROBE)
    job = submit("work", ["probe"], wishes(memory="1"), 1, folder)
    job.follow([])
    assert json.loads(Path("rank-0.json").read_text())["WORLD_SIZE"] == "1"


@pytest.mark.slow
def test_a_controller_that_does_not_answer_says_nothing_about_the_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"  # what squeue says after nine seconds
    Path("bin").mkdir()
    Path("bin/squeue").write_text(f"#!/bin/sh\n[ -e down ] && echo '{fault}' >&2 && rm down && exit 1\nexec {which('squeue')} \"$@\"\n")
    Path("bin/squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    job = submit("work", python("print('done')"), wishes(), 1, folder)
    Path("down").touch()
    with pytest.raises(SlurmError, match=rf"^squeue failed: {re.escape(fault)}$"):
        find("work", folder)
    Path("down").touch()
    with redirect_stdout(StringIO()) as output:
        job.follow([])
    lines = output.getvalue().splitlines()
    assert f"Slurm job {job.number}: squeue failed: {fault}" in lines and "done" in lines
    assert lines[-1] == f"Slurm job {job.number}: completed"


def test_without_slurm_it_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask, program in ((lambda: find("work", tmp_path), "squeue"), (lambda: submit("work", [], wishes(), 1, tmp_path), "sbatch")):
        with pytest.raises(UserError, match=rf"^LAUNCHER is slurm, but there is no {program} here: use a machine .*, or unset LAUNCHER$"):
            ask()


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        (dict(nodes=0), "nodes"),
        (dict(gpus_per_node=-1), "gpus_per_node"),
        (dict(time=24), "time"),
        (dict(options=["account=x"]), "options.0"),
        (dict(node=1), "node"),
    ],
)
def test_wishes_are_checked(wish: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=rf"^hardware\.slurm\.{name} is "):
        wishes(**wish)
