"""Runs a stage's `main` from the command line: its signature is the interface, user errors become one sentence."""

import ctypes
import errno
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import typer

from nmt.errors import UserError

OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory", re.I)  # what torch raises, on a CPU and on a GPU
PR_SET_PDEATHSIG = 1  # of Linux' prctl
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run(main: Callable[..., None]) -> None:
    """Call `main` with the process's arguments.

    A UserError, a full disk and too little memory are printed as one sentence and exit with code 2, an interrupt with 130.
    """

    @functools.wraps(main)
    def interruptible(*arguments: Any, **options: Any) -> None:
        try:
            main(*arguments, **options)
        except KeyboardInterrupt:
            print("stopped: the same command does this stage again", file=sys.stderr)
            sys.exit(130)

    _end_with_parent()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(interruptible)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        smaller = "the sizes of variants.<v>.model, train.tokens_per_update, decode.beam_size or hardware.decode_tokens"
        print(f"error: there is not enough memory for this ({str(error).splitlines()[0]}): lower {smaller}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"error: a file could not be written ({error.strerror}): make room, then run the same command again", file=sys.stderr)
        sys.exit(2)


def _end_with_parent() -> None:
    """Have Linux end a process that DVC or torchrun started when that one ends, however it does, so that no work goes on unseen.

    A stage gets SIGTERM, on which a training saves its state. A rank, which alone can do no more, is killed, and so is a stage whose work
    is done elsewhere: the work goes on, and the next run of the stage finds it.
    """
    if not sys.platform.startswith("linux"):
        return
    elsewhere = os.environ.get("LAUNCHER", "local") != "local"
    if "RANK" in os.environ or (elsewhere and "DVC_STAGE" in os.environ):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    elif "DVC_STAGE" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
