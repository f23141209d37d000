"""Lines of a stream in batches, as they arrive: none waits for lines that are not there yet, and the batches grow while there are many."""

import io
import select
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO, cast

from nmt.lines import stream_lines

READ_BYTES = 1 << 20
FIRST_LINES, MOST_LINES = 8, 2048  # of a batch


class Arriving:
    """The lines of a binary stream, each with its end, which can be asked whether the next one is there."""

    def __init__(self, stream: BinaryIO) -> None:
        self.read = getattr(stream, "read1", stream.read)
        try:
            self.descriptor: int | None = stream.fileno()
        except (OSError, io.UnsupportedOperation):  # it lies in memory
            self.descriptor = None
        self.whole: deque[bytes] = deque()
        self.begun: list[bytes] = []  # of the line that is not whole yet
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self.whole and not self.ended:
            self._read()
        if not self.whole:
            raise StopIteration
        return self.whole.popleft()

    def ready(self) -> bool:
        """Whether the next line, or the end, is there without waiting."""
        while not self.whole and not self.ended and self._readable():
            self._read()
        return bool(self.whole) or self.ended

    def _readable(self) -> bool:
        # `read1` leaves nothing in the stream's own buffer, which is smaller than READ_BYTES, so the descriptor tells all.
        return self.descriptor is None or bool(select.select([self.descriptor], [], [], 0)[0])

    def _read(self) -> None:
        content = self.read(READ_BYTES)
        if not content:
            self.ended = True
            if self.begun:
                self.whole.append(b"".join(self.begun))
            return
        *lines, rest = content.split(b"\n")
        if lines:
            self.whole.append(b"".join([*self.begun, lines[0], b"\n"]))
            self.whole.extend(line + b"\n" for line in lines[1:])
            self.begun = []
        if rest:
            self.begun.append(rest)


def batches(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """The lines of `stream` as `nmt.lines.stream_lines` gives them, with its errors; at least one at a time.

    A batch ends where the next line is not there yet. The first has FIRST_LINES lines at most, each later one up to twice as many as the
    one before, so that a reader who has seen enough soon ends it all.
    """
    arriving = Arriving(stream)
    lines = stream_lines(cast(BinaryIO, arriving), name)
    most = FIRST_LINES
    while True:
        batch: list[str] = []
        error: Exception | None = None
        try:
            while len(batch) < most and (not batch or arriving.ready()):
                batch.append(next(lines))
        except StopIteration:
            if not batch:
                return
        except Exception as found:  # what came before it is whole
            error = found
        if batch:
            yield batch
        if error is not None:
            raise error
        most = min(2 * most, MOST_LINES)
