"""Which GPU a stage computes on: GPU_SLOTS in the environment says how many may at once, and on which.

    GPU_SLOTS="0 1"        two at once, each on a GPU of its own
    GPU_SLOTS="0,1 2,3"    two at once, each on two GPUs
    without it             one stage at a time, on the whole machine, as `dvc repro` does

Each word is the CUDA_VISIBLE_DEVICES of the stage that has the slot. It comes from the environment, like all that says where something is
computed: no stage is invalidated by it. A stage that computes on GPUs says so in dvc.yaml, `meta: {gpu: true}`. Of the others one runs at a
time beside them, for it takes the processors. A stage whose work is a job of LAUNCHER (nmt/launch.py) where that names a cluster says
`meta: {job: true}`: it then takes no place here, and any number of them wait for the cluster together.

Two guards hold for all flows of this machine, whatever workspace or server they are of:

- a lock on each GPU, a file in the system's folder for temporary ones. The `dvc` of the stage holds it too, so a stage that still saves its
  work when its flow is gone keeps its GPU, and a GPU is free as soon as nobody computes on it;
- Prefect's global concurrency limit `gpu-<host>`, which counts. It shows how many are in use, an operator may lower it, and a flow fails
  where the server has none: a limit that is not there would limit nothing. `pipelines.serve` makes it.
"""

import fcntl
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from prefect import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

VARIABLE = "GPU_SLOTS"
DEVICE = re.compile(r"\d+|(GPU|MIG)-\S+")
LOCKS = Path(tempfile.gettempdir())
POLL = 0.5  # seconds between two looks
TRY = 2.0  # seconds for the server to count, should others be faster

SLOTS = len(os.environ.get(VARIABLE, "").split())  # how many this process began with
ELSEWHERE = os.environ.get("LAUNCHER", "local") != "local"
WORKSPACES = 16 if ELSEWHERE else SLOTS or 1  # at once of one flow: a job is followed by some processes here

_processors = threading.Lock()


class SlotError(Exception):
    """The slots are not what they should be, and the user can put it right. The message is one sentence."""


@dataclass(frozen=True)
class Place:
    """Where a stage runs: what its environment has besides, and the open files that its process is to hold."""

    environment: dict[str, str] = field(default_factory=dict)
    held: tuple[int, ...] = ()


def slots() -> list[str]:
    """What GPU_SLOTS says, none without it. Raises SlotError for what names no GPU, and where a GPU is in two slots."""
    found = os.environ.get(VARIABLE, "").split()
    devices = [device for slot in found for device in slot.split(",")]
    if wrong := [device for device in devices if not DEVICE.fullmatch(device)]:
        raise SlotError(f"{VARIABLE} is {os.environ[VARIABLE]!r}, but {wrong[0]!r} is no GPU: numbers, GPU-… or MIG-… are (nvidia-smi -L)")
    if twice := sorted({device for device in devices if devices.count(device) > 1}):
        raise SlotError(f"{VARIABLE} is {os.environ[VARIABLE]!r}, with {', '.join(twice)} in it twice: a GPU is in one slot")
    return found


def limit() -> str:
    """The name of Prefect's concurrency limit for the GPUs of this machine."""
    return f"gpu-{socket.gethostname()}"


def check() -> None:
    """Raise SlotError where GPU_SLOTS is wrong, or names slots of which the server has no limit."""
    found = slots()
    if found:
        with get_client(sync_client=True) as client:
            try:
                client.read_global_concurrency_limit_by_name(limit())
            except ObjectNotFound:
                make = f"prefect gcl create {limit()} --limit {len(found)}"
                raise SlotError(f"{VARIABLE} names {len(found)} slots, but the Prefect server has no limit {limit()}: `{make}`") from None


def make_limit() -> None:
    """Have the server know as many slots as GPU_SLOTS names. Raises SlotError."""
    if found := slots():
        with get_client(sync_client=True) as client:
            client.upsert_global_concurrency_limit_by_name(limit(), len(found))


@contextmanager
def place(gpu: bool, job: bool, stopped: Callable[[], bool], tell: Callable[[str], None]) -> Iterator[Place | None]:
    """A place for a stage, once there is one; None when `stopped` says so before that. `tell` hears what is waited for.

    `gpu` and `job` are what dvc.yaml says of the stage. Raises Prefect's ObjectNotFound or ConcurrencySlotAcquisitionError where the server
    has no limit.
    """
    found = slots()
    with ExitStack() as stack:
        if job and ELSEWHERE:
            yield Place()
        elif not gpu or not found:
            yield Place() if _have(lambda: _processors.acquire(blocking=False), _processors.release, stack, stopped) else None
        elif (free := _device(found, stack, stopped, tell)) and _counted(stack, stopped, tell):
            tell(f"has the GPU slot {free[0]}")
            yield Place({"CUDA_VISIBLE_DEVICES": free[0]}, free[1])
        else:
            yield None


def _have(take: Callable[[], bool], give_back: Callable[[], None], stack: ExitStack, stopped: Callable[[], bool]) -> bool:
    """Take it for as long as `stack` is open, unless `stopped` says so before it can be taken."""
    while not stopped():
        if take():
            stack.callback(give_back)
            return True
        time.sleep(POLL)
    return False


def _device(
    found: list[str], stack: ExitStack, stopped: Callable[[], bool], tell: Callable[[str], None]
) -> tuple[str, tuple[int, ...]] | None:
    """A slot of which no GPU is in use, and the files whose locks say so."""
    told = False
    while not stopped():
        for slot in found:
            if held := _locked(slot.split(",")):
                for file in held:
                    stack.callback(os.close, file)
                return slot, held
        if not told:
            tell(f"waiting for one of the GPU slots {' '.join(found)}")
            told = True
        time.sleep(POLL)
    return None


def _locked(devices: list[str]) -> tuple[int, ...]:
    """The open, locked files of these GPUs, none where one is in use."""
    held: list[int] = []
    for device in devices:
        path = LOCKS / f"gpu-{quote(device, safe='')}.lock"
        try:
            file = os.open(path, os.O_RDONLY)  # not created where it is: in a folder for all, Linux refuses that for another user's file
        except FileNotFoundError:
            file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        held.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for one in held:
                os.close(one)
            return ()
    return tuple(held)


def _counted(stack: ExitStack, stopped: Callable[[], bool], tell: Callable[[str], None]) -> bool:
    """Whether Prefect's limit counts this stage now."""
    told = False
    with get_client(sync_client=True) as client:
        while not stopped():
            known = client.read_global_concurrency_limit_by_name(limit())
            if not known.active or known.active_slots < known.limit:  # looked at first, for Prefect logs each try that fails as an error
                with suppress(TimeoutError):
                    # Where the lease cannot be renewed, for the server is away, the stage goes on: the lock on its GPU holds all the same.
                    stack.enter_context(concurrency(limit(), strict=True, timeout_seconds=TRY, raise_on_lease_renewal_failure=False))
                    return True
            if not told:
                tell(f"waiting for the Prefect limit {limit()}")
                told = True
            time.sleep(POLL)
    return False
