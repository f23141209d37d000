"""The stage `train` with LAUNCHER=kubernetes: the bytes of a training on this machine, whatever becomes of TrainJob and client.

The API server is played on loopback (tests/kubernetes_api.py); what it starts as pods is real: torchrun, the stage, its processes.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.copy_task import HARDWARE, STAGE, at_work, last_saved, outs, run, start, trained_here, wait, wait_for, write_corpus, write_params
from tests.kubernetes_api import Api, serving

TRAIN = dict(updates=120, checkpoint_every=20, microbatches=4)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a training on this machine leaves behind, in one process."""
    return trained_here(tmp_path_factory.mktemp("local"), **TRAIN)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with shards, and Kubernetes as launcher."""
    monkeypatch.setenv("LAUNCHER", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    folder = tmp_path / "volume" / "project"
    write_corpus(folder / "shards")
    return folder


@pytest.fixture
def api(tmp_path: Path, project: Path) -> Iterator[Api]:
    with serving(tmp_path) as found:
        yield found
    wait(lambda: at_work(project) == [], seconds=30)


def params(folder: Path, nodes: int = 1, train: dict[str, Any] = TRAIN, **wishes: Any) -> None:
    section = {"nodes": nodes, "image": "nmt", "claim": "project", "mount_path": str(folder.parent), **wishes}
    write_params(folder, hardware={**HARDWARE, "processes": 1, "patience": 60, "kubernetes": section}, **train)


@pytest.mark.essential
def test_two_nodes_leave_the_bytes_of_this_machine(project: Path, local: dict[str, bytes], api: Api) -> None:
    params(project, nodes=2)
    api.held = True
    process = start(project, *STAGE)
    wait(lambda: len(api.jobs) == 1, seconds=100)
    [name] = api.jobs
    wait(lambda: any(path.endswith("/pods") for _, path in api.requests), seconds=30)
    time.sleep(1)
    api.start(name)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    [training] = (project / ".scratch" / "train").iterdir()
    assert name.startswith(f"train-{training.name}-") and outs(project) == local and len(local) > 2
    said = re.findall(rf"^TrainJob {name}: (\w+)", output, re.M)
    assert said[0] == "waiting" and said[-1] == "complete" and "Insufficient nvidia.com/gpu" in output
    assert output.count("train: 120/120 updates") == 1 and "Traceback" not in output
    code, output = run(project, *STAGE)
    assert code == 0 and outs(project) == local and len(api.created) == 1, "a finished training needs no TrainJob"


def test_killed_it_is_followed_again_and_stopped_it_saves_and_goes_on(project: Path, local: dict[str, bytes], api: Api) -> None:
    params(project)
    api.held = True
    process = start(project, *STAGE)
    wait(lambda: len(api.jobs) == 1, process)
    process.kill()
    process.communicate()
    asked = len(api.requests)
    process = start(project, *STAGE)
    wait(lambda: len(api.requests) > asked, process)
    api.held = False
    api.start(next(iter(api.jobs)))
    wait_for(project, 20, process)
    pods = [pid for pid in at_work(project) if pid != process.pid]
    for pid in pods:
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end before it is told to
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    wait(lambda: all("deletionTimestamp" in job["metadata"] for job in api.jobs.values()), process)
    for pid in pods:
        os.kill(pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    reached = last_saved(project)
    assert process.returncode == 143 and f"stopped at update {reached}, which is saved" in output, output
    assert len(api.created) == 1 and api.jobs == {} and at_work(project) == [] and outs(project) == {}
    process = start(project, *STAGE)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and f"goes on from update {reached} " in output and outs(project) == local, output
