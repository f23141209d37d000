"""Work shared out as `hardware` says: over processes of this machine (nmt/workers.py), or over the machines of a Dask cluster.

    dask: null                          `hardware.workers` processes here
    dask: tcp://first-machine:8786      the workers that the scheduler at this address knows, now or later

Paths travel and no text does: all machines see the same files under the same paths. A worker that is lost, or only believed to be, may do
a task twice, even at the same time, so what a task makes gets its name at the end (`nmt.chunks.made`). A worker with other code, other
packages or other files computes nothing.
"""

import asyncio
import hashlib
import logging
import platform
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.workers import ordered, worker_count

T = TypeVar("T")
R = TypeVar("R")
ANSWER_SECONDS = 5  # within which the scheduler must answer
LOOK_SECONDS = 1  # between two looks whether there are workers
IN_FLIGHT = 1000  # tasks at the scheduler: more than most clusters have cores, and few enough to cost no memory
PACKAGES = ("distributed", "numpy", "pyarrow", "sentencepiece")  # in which tasks travel, and which make what is written
CODE = hashlib.sha256(b"\n".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:8]


def shared(function: Callable[[T], R], tasks: Iterable[T], machine: HardwareConfig, work: Path) -> Iterator[R]:
    """`function` of each task, in the order of `tasks`, whoever computes it. `work`, absolute, is the held folder that it writes to.

    `function` is sent to each process once, so it may carry much; tasks and results should be small. What it raises is raised here.
    Raises UserError when a worker of this machine is killed; when the scheduler does not answer or is lost, or has no worker for
    hardware.patience; and when a worker has other code, other packages or other files.
    """
    if machine.dask is None:
        return ordered(function, tasks, worker_count(machine.workers))
    return _on_dask(function, tasks, machine.dask, machine.patience, work)


@cache
def environment() -> dict[str, str]:
    """What a result may depend on beside its task: Python, packages, and the code as it was when this process loaded it."""
    return {"Python": platform.python_version(), **{name: version(name) for name in PACKAGES}, "code": CODE}


@dataclass(frozen=True)
class Errand:
    """`function`, to be called by a process of the same environment that sees in the folder `work` the lock of its `holder`."""

    function: Callable[[Any], Any]
    environment: dict[str, str]
    work: Path
    holder: str

    def __call__(self, task: Any) -> Any:
        """`function` of a task. Raises UserError where this process is not fit for it."""
        if found := _differences(self.environment, environment()):
            raise UserError(f"a Dask worker on {platform.node()} has {found}: give it the same, and start it anew")
        lock = self.work / "lock"
        if not lock.exists() or lock.read_text(encoding="utf-8") != self.holder:
            raise UserError(
                f"a Dask worker on {platform.node()} does not see the {self.work} of this machine: all machines must see the same files "
                "under the same paths"
            )
        return self.function(task)


def _differences(here: Mapping[str, str | None], there: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {there.get(name)}, where this process has {mine}" for name, mine in here.items() if there.get(name) != mine)


def _on_dask(function: Callable[[T], R], tasks: Iterable[T], address: str, patience: float, work: Path) -> Iterator[R]:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise UserError("hardware.dask needs the package distributed: .venv/bin/pip install -e '.[cluster]'") from None
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.scheduler import KilledWorker

    # What matters is said here, in a sentence. The loop of asyncio, which is Dask's alone, would tell of what is waited for no longer.
    for name in ("distributed", "distributed.client", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _ask(address)
    errand = Errand(function, environment(), work, (work / "lock").read_text(encoding="utf-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions that differ: said below
        client = Client(address, timeout=ANSWER_SECONDS)
    with client:
        versions = client.get_versions()
        if found := _differences(versions["client"]["packages"], versions["scheduler"]["packages"]):
            raise UserError(f"the Dask scheduler at {address} has {found}: give it the same requirements.txt, and start it anew")
        coming = iter(tasks)
        # As the result of a task it is copied from worker to worker, and made again where it is lost.
        begun = client.submit(_same, errand, pure=False)
        pending = deque(client.submit(_call, begun, task, pure=False) for task in islice(coming, IN_FLIGHT))
        try:
            while pending:
                result = _result(pending.popleft(), pending, client, address, patience)
                pending.extend(client.submit(_call, begun, task, pure=False) for task in islice(coming, 1))
                yield result
        except (FutureCancelledError, FuturesCancelledError):
            raise UserError(f"the Dask scheduler at {address} is gone: start it again; the same command goes on where it was") from None
        except KilledWorker as error:
            raise UserError(
                f"a task was given up, for {error.allowed_failures + 1} Dask workers ended over it, mostly for want of memory: their "
                "logs say more"
            ) from None


def _result(future: Any, later: Iterable[Any], client: Any, address: str, patience: float) -> Any:
    """What the task gives. Raises what a `later` one has raised meanwhile; UserError when there has been no worker for `patience` seconds.

    The scheduler may hear of later tasks first; those that ended the last worker leave nobody to compute this one. And a task that is done
    may be undone, as long as its result has not arrived: it is lost with its worker.
    """
    from distributed import wait

    seen = time.monotonic()
    while True:
        try:
            wait(future, timeout=LOOK_SECONDS)
            return future.result(timeout=ANSWER_SECONDS)
        except TimeoutError:
            if future.status == "error":  # the TimeoutError may be what the task has raised
                return future.result()
        for other in later:
            if other.status == "error":
                other.result()
        if client.nthreads():
            seen = time.monotonic()
        elif time.monotonic() - seen > patience:
            raise UserError(
                f"the Dask scheduler at {address} has had no worker for {patience:g} s (hardware.patience): start some with "
                "the project's .venv/bin/dask, the logs of those that ended say why; the same command goes on where it was"
            )


def _ask(address: str) -> None:
    """Raise UserError unless a Dask scheduler answers at `address` in time, which its client would not always notice."""
    from distributed import Security
    from distributed.comm import connect

    async def reach() -> None:
        comm = await connect(address, timeout=ANSWER_SECONDS, **Security().get_connection_args("client"))
        comm.abort()

    try:
        asyncio.run(asyncio.wait_for(reach(), ANSWER_SECONDS + 1))
    except ValueError as error:
        raise UserError(f"hardware.dask is {address}, which is no address ({error}): write it as tcp://machine:8786, or null") from None
    except Exception as error:  # what is no scheduler may answer anything
        reason = "" if isinstance(error, OSError) else f" ({type(error).__name__})"
        raise UserError(
            f"no Dask scheduler answers at {address} within {ANSWER_SECONDS} s{reason}: start one, or set hardware.dask to null"
        ) from None


def _same(errand: Errand) -> Errand:
    return errand


def _call(errand: Errand, task: Any) -> Any:
    return errand(task)
