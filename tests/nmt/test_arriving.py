"""nmt.arriving: every line once, in order, without waiting for those that are not there yet, and never many at a time."""

import io
import os
import re
from collections.abc import Iterator
from itertools import islice

import pytest

from nmt.arriving import FIRST_LINES, MOST_LINES, READ_BYTES, Arriving, batches
from nmt.errors import UserError


@pytest.mark.parametrize(
    "text", [b"", b"a", b"a\n", b"\n", b"\n\na\r\n", b"x\xe2\x80\xa8y\n\x0bz", b"a\n" * 5000, b"long " * READ_BYTES + b"\nb"]
)
def test_all_lines_come_once_and_in_order(text: bytes) -> None:
    assert list(Arriving(io.BytesIO(text))) == re.findall(rb"[^\n]*\n|[^\n]+$", text)
    found = [line for batch in batches(io.BytesIO(text), "in") for line in batch]
    assert found == [line.rstrip("\r") for line in text.decode().removesuffix("\n").split("\n")] if text else not found


def test_batches_grow_and_never_hold_more_than_the_most() -> None:
    sizes = [len(batch) for batch in batches(io.BytesIO(b"a\n" * 3 * MOST_LINES), "in")]
    assert sizes[0] == FIRST_LINES and max(sizes) == MOST_LINES and sum(sizes) == 3 * MOST_LINES
    assert all(later <= 2 * earlier for earlier, later in zip(sizes, sizes[1:], strict=False))


def test_no_more_is_read_than_a_batch_needs() -> None:
    class Endless(io.RawIOBase):
        read_bytes = 0

        def readable(self) -> bool:
            return True

        def read1(self, size: int) -> bytes:
            self.read_bytes += size
            return (b"x" * 9 + b"\n") * (size // 10)

    stream = Endless()
    taken = list(islice(batches(stream, "in"), 3))  # type: ignore[arg-type]
    assert sum(map(len, taken)) == 7 * FIRST_LINES and stream.read_bytes == READ_BYTES


def test_what_is_there_is_given_out_before_the_rest_has_come() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as writer:
        found: Iterator[list[str]] = batches(stream, "in")
        writer.write(b"one\ntwo\nthr")
        assert next(found) == ["one", "two"]
        writer.write(b"ee\n")
        assert next(found) == ["three"]
        writer.write(b"four")
        writer.close()
        assert list(found) == [["four"]]


def test_what_came_before_a_bad_line_is_given_out_first() -> None:
    found = batches(io.BytesIO(b"one\ntwo\na\0b\nthree\n"), "talk")
    assert next(found) == ["one", "two"]
    with pytest.raises(UserError, match=r"^talk, line 3, byte 9: a NUL byte"):
        next(found)
