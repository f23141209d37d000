"""Work for a Dask cluster: results in the order of the tasks, and a sentence for each way in which it cannot be done."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nmt.cluster import Errand, environment, shared
from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.scratch import held
from tests.copy_task import PROJECT
from tests.dask_cluster import Cluster, cluster

WORK = """\
import operator, os, sys
from functools import partial
from pathlib import Path
from nmt import cluster
from nmt.cluster import shared
from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.scratch import held
def tasks():
    for number in range({count}):
        yield number
        assert number < 2 * cluster.IN_FLIGHT or seen, "all of them at once"
seen = []
cluster.IN_FLIGHT = 20
try:
    with held(Path("work").absolute()) as work:
        for result in shared({function}, tasks(), HardwareConfig(dask={address!r}, patience={patience}), work):
            seen.append(result)
except UserError as error:
    sys.exit("error: " + str(error))
print(seen == [n + 1 for n in range({count})])
"""

LOSS = """\
import os, signal
import distributed
wait = distributed.wait
def wait_and_kill(future, timeout):
    wait(future, timeout=timeout)
    distributed.wait = wait
    os.kill({worker}, signal.SIGKILL)
distributed.wait = wait_and_kill
"""


def work(dask: Cluster, function: str = "partial(operator.add, 1)", count: int = 3, patience: float = 60, before: str = "") -> str:
    """What a process says that has tasks for the cluster. It is one of its own, for Dask's client changes the process that it is in."""
    program = before + WORK.format(function=function, count=count, address=dask.address, patience=patience)
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=dask.folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "dask") as found:
        yield found


@pytest.mark.slow
def test_results_stand_in_the_order_of_the_tasks_and_what_a_task_raises_is_raised(dask: Cluster) -> None:
    dask.scheduler(allowed_failures=0)
    dask.worker("first")
    assert work(dask, count=100) == "True\n"
    assert "ZeroDivisionError" in work(dask, "partial(operator.floordiv, 1)")
    assert work(dask, "os._exit").startswith("error: a task was given up, for 1 Dask workers ended over it, ")


@pytest.mark.slow
def test_what_a_later_task_has_ended_with_is_not_waited_for(dask: Cluster) -> None:
    """As when the scheduler hears of the first task after the worker has ended over another: then nobody computes it."""
    program = f"""\
import os
from distributed import Client
from nmt.cluster import _result
with Client({dask.address!r}) as client:
    first = client.submit(abs, 1, workers=["tcp://127.0.0.1:1"])
    later = [client.submit(os._exit, 1, pure=False)]
    try:
        _result(first, later, client, {dask.address!r}, 60)
    except Exception as error:
        print(type(error).__name__)
"""
    dask.scheduler(allowed_failures=0)
    dask.worker("first")
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "KilledWorker\n", done.stderr


@pytest.mark.slow
def test_a_result_that_is_lost_with_the_last_worker_is_not_waited_for_forever(dask: Cluster) -> None:
    """The worker is killed after the client has heard that the task is done, and before it has fetched the result."""
    dask.scheduler()
    dask.worker("first")
    said = work(dask, count=1, patience=2, before=LOSS.format(worker=dask.processes["first"].pid))
    sentence = f"error: the Dask scheduler at {dask.address} has had no worker for 2 s (hardware.patience): start some with "
    assert said.startswith(sentence) and said.count("\n") == 1, said


@pytest.mark.slow
def test_workers_with_other_code_or_without_it_and_schedulers_with_other_packages_are_refused(dask: Cluster, tmp_path: Path) -> None:
    dask.scheduler()
    shutil.copytree(PROJECT / "nmt", tmp_path / "other" / "nmt")
    with (tmp_path / "other" / "nmt" / "cleaning.py").open("a") as stream:
        stream.write("MORE = 1\n")
    (tmp_path / "none" / "nmt").mkdir(parents=True)
    (tmp_path / "none" / "nmt" / "__init__.py").write_text("raise ModuleNotFoundError('No module', name='nmt')")
    dask.worker("other", tmp_path / "other")
    said = work(dask)
    assert re.fullmatch(
        r"error: a Dask worker on \S+ has code \w{8}, where this process has \w{8}: give it the same, and start it anew\n", said
    ), said
    dask.kill("other")
    dask.worker("none", tmp_path / "none")
    assert re.match(
        "error: the Dask scheduler at .* has had no worker for 1 s .* start some with the project's .venv/bin/dask, ",
        work(dask, patience=1),
    )
    dask.kill("none", "scheduler")
    (tmp_path / "old.py").write_text(
        "from distributed import versions\n"
        "if not hasattr(versions, 'found'):\n"  # Dask runs this twice
        "    versions.found = versions._version_cached\n"
        "    versions._version_cached = lambda name: '0.1' if name == 'toolz' else versions.found(name)\n"
    )
    dask.scheduler("--preload", str(tmp_path / "old.py"))
    sentence = (
        rf"error: the Dask scheduler at {dask.address} has toolz 0\.1, where this process has [\d.]+: give it the same requirements.txt, "
    )
    assert re.match(sentence, said := work(dask)), said


@pytest.mark.slow
def test_a_scheduler_without_workers_is_waited_for_and_a_worker_may_come_late(dask: Cluster) -> None:
    dask.scheduler()
    assert work(dask, patience=1).startswith(f"error: the Dask scheduler at {dask.address} has had no worker for 1 s (hardware.patience): ")
    with ThreadPoolExecutor() as pool:
        said = pool.submit(work, dask)
        time.sleep(1)
        dask.worker("late")
        assert said.result() == "True\n"


def test_an_address_where_nobody_answers_or_somebody_else_is_refused_within_seconds(tmp_path: Path) -> None:
    with held(tmp_path / "work") as folder, socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        closed.bind(("127.0.0.1", 0))
        for address, said in (
            (f"tcp://127.0.0.1:{closed.getsockname()[1]}", "no Dask scheduler answers at tcp://127.0.0.1:.* within 5 s: start one, or "),
            (f"tcp://127.0.0.1:{silent.getsockname()[1]}", "no Dask scheduler answers at tcp://127.0.0.1:.* within 5 s: start one, or "),
            ("first-machine", "hardware.dask is first-machine, which is no address .*: write it as tcp://machine:8786, or null"),
            ("tpc://first-machine:8786", "hardware.dask is tpc://first-machine:8786, which is no address "),
        ):
            began = time.monotonic()
            with pytest.raises(UserError, match=f"^{said}"):
                next(shared(abs, [1, 2, 3], HardwareConfig(dask=address), folder))
            assert time.monotonic() - began < 20


def test_a_process_that_is_not_fit_refuses(tmp_path: Path) -> None:
    with held(tmp_path / "work") as folder:
        holder = (folder / "lock").read_text()
        assert Errand(abs, environment(), folder, holder)(-3) == 3
        with pytest.raises(
            UserError, match=r"^a Dask worker on .* has numpy [\d.]+, where this process has 1\.0: give it the same, and start"
        ):
            Errand(abs, environment() | {"numpy": "1.0"}, folder, holder)(-3)
        for place, holds in ((folder, "another process"), (tmp_path / "elsewhere", holder)):
            with pytest.raises(UserError, match=rf"^a Dask worker on .* does not see the {place} of this machine: all machines must see"):
                Errand(abs, environment(), place, holds)(-3)


def test_without_a_cluster_the_processes_are_of_this_machine(tmp_path: Path) -> None:
    assert list(shared(abs, [-1, 2], HardwareConfig(workers=1), tmp_path)) == [1, 2]
