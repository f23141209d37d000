"""Progress of long work on stderr: one line that is rewritten on a terminal, one line every ten seconds in a log.

train: 1,200/2,000 updates (60 %), 4.1 updates/s, 3:15 left, loss 3.214
"""

import sys
import time
from types import TracebackType
from typing import Self


class Progress:
    """Counts `unit`s of a job called `label` up to `total` (None: unknown) and shows rate and time left.

    `done` is where the job already stands when it begins, so that resumed work shows an honest rate. Only counts unless `visible`.
    Where units are unequal, `work` is all of it in any measure, of which `advance` is told too: the time left is that of the work left.
    """

    TERMINAL_SECONDS = 0.2
    LOG_SECONDS = 10.0

    def __init__(self, label: str, total: int | None, unit: str, done: int = 0, visible: bool = True, work: float | None = None) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self.first = done
        self.work, self.worked = work, 0.0
        self.note = ""
        self.visible = visible
        self.terminal = visible and sys.stderr.isatty()
        self.began = self.shown = time.monotonic()

    def advance(self, count: int = 1, note: str | None = None, work: float = 0.0) -> None:
        """Add `count` units, and `work`; `note` is shown behind the figures until the next one."""
        self.done += count
        self.worked += work
        if note is not None:
            self.note = note
        now = time.monotonic()
        if now - self.shown >= (self.TERMINAL_SECONDS if self.terminal else self.LOG_SECONDS):
            self.shown = now
            self._show(self.line())

    def advance_by(self, count: int, work: float) -> None:
        """The same for whoever tells `count` and `work` alone."""
        self.advance(count, work=work)

    def skip(self, count: int, work: float = 0.0) -> None:
        """Count units that were done before: they are no part of the rate."""
        self.done += count
        self.first += count
        if self.work is not None:
            self.work -= work

    def line(self) -> str:
        """The present state in words."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        rate = (self.done - self.first) / seconds
        parts = [f"{self.done:,} {self.unit}", f"{_figure(rate)} {self.unit}/s"]
        if self.total is not None:
            parts[0] = f"{self.done:,}/{self.total:,} {self.unit} ({100 * self.done // max(self.total, 1)} %)"
            done, total = (self.done - self.first, self.total - self.first) if self.work is None else (self.worked, self.work)
            if done > 0 and self.done < self.total:
                parts.append(f"{clock(max(0.0, total - done) * seconds / done)} left")
        if self.note:
            parts.append(self.note)
        return f"{self.label}: {', '.join(parts)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        seconds = time.monotonic() - self.began
        state = "" if kind is None else " (stopped)"
        self._show(f"{self.line()}, {clock(seconds)} in all{state}")
        if self.terminal:
            sys.stderr.write("\n")

    def _show(self, line: str) -> None:
        if not self.visible:
            return
        sys.stderr.write(f"\r{line}\x1b[K" if self.terminal else f"{line}\n")
        sys.stderr.flush()


def clock(seconds: float) -> str:
    """A duration as h:mm:ss or m:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
