"""Starts the processes of one training on this machine with torch's launcher (torchrun), and ends them together.

The same command is a rank where the environment says so, whoever started it: this module, `torchrun` on several nodes, Slurm.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from types import FrameType
from typing import Literal

import torch

from nmt.errors import UserError
from nmt.ranks import is_rank

LAUNCHERS = ("local", "slurm", "kubernetes")  # what LAUNCHER in the environment may be
GRACE_SECONDS = 30  # from the signal to stop until the processes are killed


def processes(wanted: Literal["auto"] | int, device: torch.device, microbatches: int) -> int:
    """How many processes compute an update of so many pieces: those of the launcher, or as many as `wanted` here.

    `auto` is one on a processor, and on GPUs as many as there are, or fewer that divide the pieces. Raises UserError for a number that
    does not divide them, or that is larger than the number of GPUs, and for an unknown LAUNCHER in the environment.
    """
    launcher = os.environ.get("LAUNCHER", LAUNCHERS[0])
    if launcher not in LAUNCHERS:
        raise UserError(f"LAUNCHER is {launcher}, but known are {', '.join(LAUNCHERS)}")
    gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    if is_rank():
        count = int(os.environ["WORLD_SIZE"])
    elif wanted == "auto":
        return max(count for count in _dividing(microbatches) if count <= gpus)
    else:
        count = wanted
        if device.type == "cuda" and count > gpus:
            raise UserError(f"hardware.processes is {count}, but there are {gpus} GPUs here, one for each process: set it to auto")
    check_shares(count, microbatches)
    return count


def check_shares(count: int, microbatches: int) -> None:
    """Raise UserError unless so many processes can share the pieces of an update evenly."""
    if count not in _dividing(microbatches):
        raise UserError(
            f"{count} processes cannot share the {microbatches} pieces of an update evenly: make hardware.processes one of "
            f"{', '.join(map(str, _dividing(microbatches)))}, or train.microbatches a multiple of {count}"
        )


def _dividing(microbatches: int) -> list[int]:
    return [count for count in range(1, microbatches + 1) if microbatches % count == 0]


def start(count: int, module: str, arguments: Sequence[str], signals: Sequence[int]) -> None:
    """Run `python -m module arguments` as `count` processes and wait for them.

    SIGINT and SIGTERM are passed on, after which the processes have GRACE_SECONDS to save their work; with one in `signals`, which came
    before, nothing is started. When one fails, the others are ended.
    Exits with 128 + the signal's number, or with the code of the process that failed first.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what matters is said below, in a sentence

    def stop(number: int, frame: FrameType | None) -> None:
        for later in (signal.SIGINT, signal.SIGTERM):
            signal.signal(later, signal.SIG_IGN)  # once is enough; again would cut short what the first has begun
        raise SignalException(f"signal {number}", signal.Signals(number))

    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id=module,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            signals_to_handle="SIGHUP,SIGQUIT",
            shutdown_timeout=GRACE_SECONDS,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        if signals:
            sys.exit(128 + signals[0])
        try:
            elastic_launch(config, sys.executable)("-m", module, *arguments)
        except SignalException as stopped:
            sys.exit(128 + stopped.sigval)
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            if failure.exitcode < 0:
                name = signal.Signals(-failure.exitcode).name
                print(
                    f"error: process {rank} of {count} was ended by {name}: the same command goes on from what was saved",
                    file=sys.stderr,
                )
                sys.exit(1)
            sys.exit(failure.exitcode)
