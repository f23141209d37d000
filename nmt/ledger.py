"""The ledger: one row for each pair of the training text that was dropped, as a Parquet file.

file (string)            line (int64)   train_line (int64)   rule (string)
europarl:…/v7.de-en.en   11             11                   blank              the 11th line of that part of raw/train.*
commoncrawl.de-en.en     3              1920212              duplicate          its 3rd line, and which one of raw/train.* that is
"""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("file", pa.string()), ("line", pa.int64()), ("train_line", pa.int64()), ("rule", pa.string())])
Row = tuple[str, int, int, str]


class Ledger:
    """Writes rows to the file `path`, a row group at a time; the same rows give the same bytes, however they are handed over."""

    ROWS = 100_000  # of one row group

    def __init__(self, path: Path) -> None:
        self.writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self.rows: list[Row] = []
        self.count = 0

    def drop(self, rows: Iterable[Row]) -> None:
        """Add rows. Lines count from 1: `line` within the part `file`, `train_line` within all of the raw training text."""
        for row in rows:
            self.count += 1
            self.rows.append(row)
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
