"""Which pairs are trained on. Every pair that is read is kept, or dropped by exactly one rule, the first that applies:

    blank       a side shows nothing (`nmt.lines.is_blank`)
    too_long    a side has more than max_words words or max_characters characters
    ratio       one side has more than max_ratio times the words of the other
    identical   both sides are equal                                  (if drop_identical)
    held_out    the source stands in valid or in a test set           (if drop_held_out)
    duplicate   the same pair was kept before                         (if drop_duplicates)

Words are what white space separates. A dropped pair is one row of the ledger, a Parquet file:

    file (string)            line (int64)    rule (string)
    europarl:…/v7.de-en.en   11              blank              the 11th line of that part of the raw training text
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from nmt.config import Config
from nmt.lines import is_blank, join_whitespace

RULES = ("blank", "too_long", "ratio", "identical", "held_out", "duplicate")
SCHEMA = pa.schema([("file", pa.string()), ("line", pa.int64()), ("rule", pa.string())])


class CleaningConfig(Config):
    """Section `corpora.*.cleaning`."""

    join_whitespace: bool
    max_words: int = Field(ge=1)
    max_characters: int = Field(ge=1)
    max_ratio: float = Field(ge=1, allow_inf_nan=False)
    drop_identical: bool
    drop_duplicates: bool
    drop_held_out: bool


class Cleaner:
    """Judges pairs one after the other. `held_out` are the source sentences of valid and of all test sets."""

    def __init__(self, config: CleaningConfig, held_out: Iterable[str]) -> None:
        self.config = config
        self.held_out = {join_whitespace(line) for line in held_out} if config.drop_held_out else set()
        self.seen: set[bytes] = set()  # 16 bytes of hash for each pair kept

    def prepare(self, line: str) -> str:
        """What is written of a line that is kept."""
        return join_whitespace(line) if self.config.join_whitespace else line

    def rule(self, src: str, tgt: str) -> str | None:
        """The rule that drops this pair of prepared lines, or None, in which case it counts as kept from now on."""
        config = self.config
        if is_blank(src) or is_blank(tgt):
            return "blank"
        if len(src) > config.max_characters or len(tgt) > config.max_characters:
            return "too_long"
        words = (len(src.split()), len(tgt.split()))
        if max(words) > config.max_words:
            return "too_long"
        if max(words) > config.max_ratio * min(words):
            return "ratio"
        if config.drop_identical and src == tgt:
            return "identical"
        if config.drop_held_out and join_whitespace(src) in self.held_out:
            return "held_out"
        if config.drop_duplicates:
            pair = hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=16).digest()  # no line holds \n
            if pair in self.seen:
                return "duplicate"
            self.seen.add(pair)
        return None


class Ledger:
    """Writes the rows of dropped pairs to the file `path`, a row group at a time; the same rows give the same bytes."""

    ROWS = 100_000  # of one row group

    def __init__(self, path: Path) -> None:
        self.writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self.rows: list[tuple[str, int, str]] = []

    def drop(self, file: str, line: int, rule: str) -> None:
        """Add a row: `line` counts from 1 within the part `file`."""
        self.rows.append((file, line, rule))
        if len(self.rows) == self.ROWS:
            self._flush()

    def _flush(self) -> None:
        arrays = [pa.array(column, type=field.type) for column, field in zip(zip(*self.rows, strict=True), SCHEMA, strict=True)]
        self.writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self.rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.rows:
            self._flush()
        self.writer.close()
