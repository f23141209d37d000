"""The stage `train` on two machines, which are two network namespaces with a cable between them: the same bytes, and the loss of one."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.copy_task import HARDWARE, PROJECT, STAGE, at_work, last_saved, outs, run, wait, wait_for, write_corpus, write_params

PATIENCE = 5.0  # seconds, of hardware.patience

pytestmark = pytest.mark.slow


class Nodes:
    """Two machines that see the same folder, `first` at 10.77.0.1 and `second` at 10.77.0.2, each with one process of a training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [f"nmt-{os.getpid()}-{which}" for which in ("first", "second")]

    def build(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("-n", self.names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for number, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")

    def cable(self, state: str) -> None:
        """Pull the cable (`down`) or put it back (`up`): nobody is told that a connection has ended."""
        ip("-n", self.names[1], "link", "set", "eth0", state)

    def start(self) -> list[subprocess.Popen[str]]:
        """The command of README.md, on both."""
        meet = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "0", "--master-addr", "10.77.0.1", "--master-port", "29400")
        return [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *meet, "--node-rank", str(n), "-m", *STAGE],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "eth0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for n, name in enumerate(self.names)
        ]

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two machines and a corpus. Afterwards nothing that was started there may run."""
    nodes = Nodes(tmp_path / "project")
    try:
        nodes.build()
    except (OSError, subprocess.CalledProcessError) as error:
        nodes.remove()
        pytest.skip(f"network namespaces need root and `ip` (Debian: iproute2): {error}")
    write_corpus(nodes.folder / "shards")
    yield nodes
    for pid in at_work(nodes.folder):
        os.kill(pid, signal.SIGKILL)
    nodes.remove()


def params(folder: Path, **train: Any) -> None:
    write_params(folder, hardware={**HARDWARE, "processes": "auto", "patience": PATIENCE}, checkpoint_every=5, microbatches=2, **train)


def alone(nodes: Nodes, **train: Any) -> dict[str, bytes]:
    """What one process leaves, in a folder beside."""
    folder = nodes.folder.with_name("alone")
    shutil.copytree(nodes.folder / "shards", folder / "shards")
    params(folder, **train)
    code, output = run(folder, *STAGE)
    assert code == 0, output
    return outs(folder)


JOIN = """
import torch
from nmt import ranks
from nmt.errors import UserError

ranks.MEETING_SECONDS = 2
try:
    with ranks.joined(torch.device("cpu"), 60):
        pass
except UserError as error:
    raise SystemExit(f"error: {error}")
"""


def test_without_the_name_of_the_network_both_end_in_a_sentence_that_asks_for_it(nodes: Nodes) -> None:
    """Each tells the other that it is at 127.0.0.1. One is refused there; the other would wait for ever."""
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29401", "PYTHONPATH": str(PROJECT)}
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", JOIN],
            env={**os.environ, **group, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(nodes.names)
    ]
    for rank, process in enumerate(started):
        said = process.communicate(timeout=60)[1].splitlines()[-1]
        assert process.returncode in (1, 2)
        assert said.startswith(f"error: process {rank} of 2 did not find the others at 10.77.0.1:29401 within 2 s: ")
        assert said.endswith("name the one between them in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME")


def test_a_lost_node_ends_the_job_within_the_bound_and_the_next_one_ends_with_the_bytes_of_one_process(nodes: Nodes) -> None:
    expected = alone(nodes, updates=100)
    params(nodes.folder, updates=100)
    reached = 0
    for loss in ("power", "cable"):
        first, second = nodes.start()
        wait_for(nodes.folder, reached + 1, first)
        if loss == "power":
            lost = psutil.Process(second.pid)
            for process in (*lost.children(recursive=True), lost):
                process.kill()
        else:
            nodes.cable("down")
        began = time.monotonic()
        outputs = [process.communicate(timeout=90)[0] for process in (first, second)]
        assert time.monotonic() - began < PATIENCE + 40  # of which torchrun's own share is up to 30, to end what is left
        assert first.returncode == 1
        assert re.search(r"^error: process 0 ends in update \d+, for process 1 (is gone|has not come)", outputs[0], re.M)
        if loss == "cable":
            assert second.returncode == 1
            assert re.search(r"^error: process 1 ends in update \d+, for process 0 has not come", outputs[1], re.M)
            nodes.cable("up")
        wait(lambda: at_work(nodes.folder) == [], seconds=30)
        assert outs(nodes.folder) == {} and 100 > last_saved(nodes.folder) > reached
        reached = last_saved(nodes.folder)
    outputs = [process.communicate(timeout=120)[0] for process in nodes.start()]
    assert f"goes on from update {reached} " in outputs[0], outputs
    assert outs(nodes.folder) == expected
