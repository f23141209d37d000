"""Tokenized pairs on disk: Arrow IPC files, memory-mapped, that pandas, pyarrow and duckdb open as tables.

A folder holds `00000.arrow`, `00001.arrow`, …; each is one record batch with two list columns of token ids, without
special tokens, and the tokenizer's sha256 and vocabulary size in its schema:

    src                 tgt
    [812, 4, 95, 11]    [77, 1204, 5]
    [9, 310]            [42]

Below it there may be folders `sampled-000`, `sampled-001`, … of the same pairs in other pieces, one for each epoch (nmt/resampling.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from nmt.errors import UserError

SIDES = ("src", "tgt")
PAIRS_PER_SHARD = 500_000  # of 25 words a side: about 50 MB
Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


@dataclass(frozen=True)
class Side:
    """One language of a shard: sentence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Ids  # [tokens], uint16 or uint32
    offsets: np.ndarray[tuple[int], np.dtype[np.int32]]  # [pairs + 1]

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Tokens of each sentence, without special ones. [pairs]"""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Shard:
    """One memory-mapped file of pairs."""

    src: Side
    tgt: Side
    vocab_size: int
    tokenizer_sha256: str

    def __len__(self) -> int:
        return len(self.src.offsets) - 1


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type that holds all ids of a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def write_lists(
    path: Path, ids: Sequence[Ids], lengths: Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]], vocab_size: int, tokenizer_sha256: str
) -> None:
    """Write one shard from the token ids of all its sources and of all its targets, joined, and their lengths."""
    sides = []
    for joined, each in zip(ids, lengths, strict=True):
        offsets = np.concatenate(([0], np.cumsum(each, dtype=np.int64)))
        sides.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(joined)))
    metadata = {"vocab_size": str(vocab_size), "tokenizer_sha256": tokenizer_sha256}
    schema = pa.schema([(name, side.type) for name, side in zip(SIDES, sides, strict=True)], metadata)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(sides, schema=schema))


def shard_files(folder: Path) -> list[Path]:
    """The files of a folder of shards, in order. Raises UserError when there are none."""
    files = sorted(folder.glob("*.arrow"))
    if not files:
        raise UserError(f"{folder} holds no shards: they are written by the stage `shard`")
    return files


def epochs_of(folder: Path) -> list[list[Path]]:
    """The files that a training on `folder` reads in its epochs, one after the other and then again from the first.

    Raises UserError when there are none.
    """
    return [shard_files(sampled) for sampled in sorted(folder.glob("sampled-*"))] or [shard_files(folder)]


def read_shard(path: Path) -> Shard:
    """Open one file without reading it. Raises UserError when it is not a shard."""
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        metadata = {key.decode(): text.decode() for key, text in batch.schema.metadata.items()}
        sides = [_side(batch.column(name)) for name in SIDES]
        return Shard(sides[0], sides[1], int(metadata["vocab_size"]), metadata["tokenizer_sha256"])
    except (pa.ArrowException, LookupError, AttributeError, ValueError, OSError) as error:
        raise UserError(f"{path} is not a shard of this project ({error}): run the stage `shard` again") from None


def read_pairs(folder: Path) -> Iterator[tuple[Ids, Ids]]:
    """All pairs of a folder in order."""
    for path in shard_files(folder):
        shard = read_shard(path)
        for index in range(len(shard)):
            yield shard.src[index], shard.tgt[index]


def _side(column: pa.ListArray) -> Side:
    return Side(column.values.to_numpy(), column.offsets.to_numpy())
