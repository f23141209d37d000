"""A text in two files, line by line a pair, cut into chunks of equally many lines that processes read apart from each other.

    train.en, train.de    ->    lines 0 to 19,999; 20,000 to 39,999; …        each with the bytes it takes in either file

The text is one that this project wrote: each line ends at `\\n`, the last one too (nmt/lines.py).
"""

import hashlib
import os
import shutil
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np

from nmt.errors import UserError

BLOCK = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class Chunk:
    """Some lines of both files."""

    number: int
    first: int  # line, from 0
    lines: int
    src: tuple[int, int]  # first byte, and the one behind the last
    tgt: tuple[int, int]


@dataclass(frozen=True)
class ParallelText:
    """Two files of equally many lines. `every` lines make a chunk; places are bytes of the file where a chunk begins, and of its end."""

    src: Path
    tgt: Path
    lines: int
    sha256: tuple[str, str]
    every: int
    places: tuple["array[int]", "array[int]"]

    def chunks(self) -> Iterator[Chunk]:
        """All chunks in order."""
        src, tgt = self.places
        for number, first in enumerate(range(0, self.lines, self.every)):
            lines = min(self.every, self.lines - first)
            yield Chunk(number, first, lines, (src[number], src[number + 1]), (tgt[number], tgt[number + 1]))

    def __len__(self) -> int:
        """The number of chunks."""
        return -(-self.lines // self.every)

    def read(self, chunk: Chunk) -> tuple[list[str], list[str]]:
        """The lines of a chunk, source and target, without their ends."""
        return _lines(self.src, *chunk.src), _lines(self.tgt, *chunk.tgt)


def parallel_text(src: Path, tgt: Path, every: int) -> ParallelText:
    """Look through both files once; the result may travel to other processes. Raises UserError when they have unequal numbers of lines."""
    (src_lines, src_sha256, src_places), (tgt_lines, tgt_sha256, tgt_places) = _scan(src, every), _scan(tgt, every)
    if src_lines != tgt_lines:
        raise UserError(f"{src} has {src_lines:,} lines, {tgt} has {tgt_lines:,}: run the stage that wrote them again")
    return ParallelText(src.absolute(), tgt.absolute(), src_lines, (src_sha256, tgt_sha256), every, (src_places, tgt_places))


@contextmanager
def made(path: Path) -> Iterator[Path]:
    """A new folder beside `path` that takes its place when the block ends well, and vanishes when it raises.

    Of several processes that make the same one at the same time, the first one's stays: they are equal. The disk holds the files before
    they get their name, so that not even a power cut leaves half of them.
    """
    building = path.with_name(f"{path.name}.{uuid4().hex}.part")
    building.mkdir()
    try:
        yield building
        for file in building.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        try:
            os.rename(building, path)
        except OSError:  # a folder that holds files is not replaced
            if not path.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _scan(path: Path, every: int) -> tuple[int, str, "array[int]"]:
    """Number of lines, SHA-256, and the byte at which each `every`-th line begins; at the end that of the file's end."""
    digest, lines, offset, places = hashlib.sha256(), 0, 0, array("q", [0])
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
            ends = block.count(b"\n")
            if lines + ends >= len(places) * every:
                found = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
                places.extend((offset + 1 + found[len(places) * every - lines - 1 :: every]).tolist())
            lines += ends
            offset += len(block)
    if places[-1] != offset:
        places.append(offset)
    return lines, digest.hexdigest(), places


def _lines(path: Path, first: int, end: int) -> list[str]:
    with path.open("rb") as stream:
        stream.seek(first)
        return stream.read(end - first).decode("utf-8").split("\n")[:-1]
