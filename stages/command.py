"""Runs a stage's `main` from the command line: its signature is the interface, user errors become one sentence."""

import errno
import sys
from collections.abc import Callable

import typer

from nmt.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run(main: Callable[..., None]) -> None:
    """Call `main` with the process's arguments. A UserError, or a full disk, is printed as one sentence and exits with code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"error: a file could not be written ({error.strerror}): make room, then run the same command again", file=sys.stderr)
        sys.exit(2)
