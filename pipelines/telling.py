"""What a long command is at, on stderr: one line that is rewritten on a terminal, elsewhere a line every ten seconds at most."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Tell = Callable[[str], None]
LOG_SECONDS = 10.0


def silent(_: str) -> None:
    """Tell nothing."""


@contextmanager
def telling(label: str) -> Iterator[Tell]:
    """A function that is told what the command called `label` is at."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(label) as status:
            yield lambda what: status.update(f"{label}: {what}")
        return
    shown = time.monotonic()

    def tell(what: str) -> None:
        nonlocal shown
        if time.monotonic() - shown >= LOG_SECONDS:
            shown = time.monotonic()
            console.print(f"{label}: {what}", soft_wrap=True, markup=False, highlight=False)

    yield tell
