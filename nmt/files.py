"""Text from the user's own files: pairs of files in which line n of one translates line n of the other.

train:  news.en.gz  news.de.gz      plain, or compressed as .gz, .xz, .bz2 or .zst
        talks.en    talks.de        several pairs of files are joined in the order given
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from nmt.alignment import misaligned
from nmt.config import Config
from nmt.download import sha256_of
from nmt.errors import UserError
from nmt.lines import read_lines
from nmt.pairs import TRAIN, Counted, Pair
from nmt.progress import Progress


class FilePair(Config):
    """Two files of equally many lines, as paths from the top of the project."""

    src: str
    tgt: str

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.src == self.tgt:
            raise ValueError(f"src and tgt are the same file, {self.src}")
        return self


class FilesSource(Config):
    """Section `corpora.*.source` of kind files: for each set its pairs of files, in order. Sets left out are held out from train."""

    kind: Literal["files"]
    sets: dict[str, list[FilePair]] = Field(min_length=1)

    @model_validator(mode="after")
    def _keep_sets_apart(self) -> Self:
        train = {path for pair in self.sets.get(TRAIN, []) for path in (pair.src, pair.tgt)}
        for name in self.sets.keys() - {TRAIN}:
            for pair in self.sets[name]:
                if both := train & {pair.src, pair.tgt}:
                    raise ValueError(f"{min(both)} is in train and in {name}: what is trained on cannot test")
        return self


def check_files(source: FilesSource) -> dict[str, str]:
    """Read every file of the source to its end; returns their SHA-256 by name.

    Raises UserError for a file that is missing, empty or not text, for two sides of unequal length, and for a pair of
    files that are the same.
    """
    hashes = {}
    with Progress("check", None, "lines") as progress:
        for pairs in source.sets.values():
            for pair in pairs:
                src, tgt = (array("I", map(len, read_lines(Path(side)))) for side in (pair.src, pair.tgt))
                for name, lengths in ((pair.src, src), (pair.tgt, tgt)):
                    if not lengths:
                        raise UserError(f"{name} is empty")
                    hashes[name] = sha256_of(Path(name))
                    progress.advance(len(lengths))
                if len(src) != len(tgt):
                    raise misaligned(pair.src, src, pair.tgt, tgt)
                if hashes[pair.src] == hashes[pair.tgt]:
                    raise UserError(f"{pair.src} and {pair.tgt} hold the same text: one of them must be its translation")
    return hashes


def file_pairs(source: FilesSource, counted: Counted) -> Iterator[Pair]:
    """The pairs of all sets, each file pair a part named by its source file. The files must have passed `check_files`."""
    for set_name, pairs in source.sets.items():
        for pair in pairs:
            sides = (read_lines(Path(side), counted) for side in (pair.src, pair.tgt))
            yield from (Pair(set_name, pair.src, *lines) for lines in zip(*sides, strict=True))
