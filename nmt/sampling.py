"""Which lines a tokenizer is trained on, drawn over the whole text, and how much of it that is."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.chance import mixed
from nmt.errors import UserError
from nmt.tokenizer import MAX_LINE_BYTES

RESERVED = "\u2585"  # the trainer's own sign for unknown characters: it skips lines that hold one, in silence too
MOST_SKIPPED = 0.01  # of the characters
LOTS = 10_000  # lines drawn at a time


@dataclass
class Sampled:
    """How much of the text the trainer was given, and how much of that it passes over."""

    lines: int = 0  # of the whole text
    sampled: int = 0
    characters: int = 0  # of the sampled lines
    skipped: int = 0  # sampled lines that the trainer passes over
    skipped_characters: int = 0


def sample(files: Sequence[Path], size: int, counts: Sampled) -> Iterator[str]:
    """About `size` lines, drawn evenly over all `files` by a hash of their place; all of them when there are fewer.

    Whether a line is drawn depends on the number of lines and its place alone. Few lines are in memory at a time. What is drawn is added to
    `counts`. Raises UserError at the end when the trainer passes over more than a hundredth of the text.
    """
    counts.lines = sum(_count_lines(path) for path in files)
    share = size / max(counts.lines, 1)
    for place, path in enumerate(files):
        with path.open("rb") as stream:
            for first in range(0, sys.maxsize, LOTS):
                block = list(islice(stream, LOTS))
                if not block:
                    break
                for line in block if share >= 1 else compress(block, (lots(place, first, len(block)) < share).tolist()):
                    text = line[:-1].decode("utf-8")
                    counts.sampled += 1
                    counts.characters += len(text)
                    if RESERVED in text or len(line) > MAX_LINE_BYTES:
                        counts.skipped += 1
                        counts.skipped_characters += len(text)
                    yield text
    if counts.skipped_characters > MOST_SKIPPED * counts.characters:
        raise UserError(
            f"SentencePiece would pass over {counts.skipped:,} of {counts.sampled:,} lines, those with the character U+2585, its own sign "
            "for unknown ones: replace it in the training text"
        )


def lots(file: int, first: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), as if drawn by chance, for `count` lines of file number `file`, from line `first` on. [count]"""
    numbers = (np.arange(first, first + count, dtype=np.uint64) << np.uint64(8)) + np.uint64(file)
    return mixed(numbers).astype(np.float64) / 2**64


def _count_lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
