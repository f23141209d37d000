"""Text from the user's own files: pairs of files in which line n of one translates line n of the other.

train:  news.en.gz  news.de.gz      plain, or compressed as .gz, .xz, .bz2 or .zst
        talks.en    talks.de        several pairs of files are joined in the order given
        web.tsv:1   web.tsv:2       columns of a table, or languages of a translation memory, web.tmx:en (nmt/tables.py)
"""

from array import array
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from nmt.alignment import misaligned
from nmt.config import Config
from nmt.download import sha256_of
from nmt.errors import UserError
from nmt.pairs import TRAIN, Counted, Pair
from nmt.progress import Progress
from nmt.tables import check_name, file_of, side_lines


class FilePair(Config):
    """Two files of equally many lines, as paths from the top of the project."""

    src: str
    tgt: str

    @field_validator("src", "tgt")
    @classmethod
    def _is_one_side(cls, name: str) -> str:
        return check_name(name)

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
        train = {file_of(name) for pair in self.sets.get(TRAIN, []) for name in (pair.src, pair.tgt)}
        for name in self.sets.keys() - {TRAIN}:
            for pair in self.sets[name]:
                if both := train & {file_of(pair.src), file_of(pair.tgt)}:
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
                src, tgt = (array("I", map(len, side_lines(side))) for side in (pair.src, pair.tgt))
                for name, lengths in ((pair.src, src), (pair.tgt, tgt)):
                    if not lengths:
                        raise UserError(f"{name} is empty")
                    hashes[str(file_of(name))] = sha256_of(file_of(name))
                    progress.advance(len(lengths))
                if len(src) != len(tgt):
                    raise misaligned(pair.src, src, pair.tgt, tgt)
                files = [str(file_of(name)) for name in (pair.src, pair.tgt)]
                if files[0] != files[1] and hashes[files[0]] == hashes[files[1]]:
                    raise UserError(f"{pair.src} and {pair.tgt} hold the same text: one of them must be its translation")
    return hashes


def file_pairs(source: FilesSource, counted: Counted) -> Iterator[Pair]:
    """The pairs of all sets, each file pair a part named by its source file. The files must have passed `check_files`."""
    for set_name, pairs in source.sets.items():
        for pair in pairs:
            both = file_of(pair.src) == file_of(pair.tgt)  # read twice, to be counted once
            sides = (side_lines(pair.src, counted), side_lines(pair.tgt, None if both else counted))
            yield from (Pair(set_name, pair.src, *lines) for lines in zip(*sides, strict=True))
