"""Runs a stage's `main` from the command line: its signature is the interface, user errors become one sentence."""

import sys
from collections.abc import Callable

import typer

from nmt.errors import UserError


def run(main: Callable[..., None]) -> None:
    """Call `main` with the process's arguments. A UserError is printed as one sentence and exits with code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
