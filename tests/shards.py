"""Shards of pairs that a test makes up."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from nmt.shards import id_type, write_lists

Pair = tuple[Sequence[int], Sequence[int]]


def write_shards(pairs: Iterable[Pair], folder: Path, vocab_size: int, tokenizer_sha256: str, size: int = 500_000) -> int:
    """Write pairs of token ids to `folder`, `size` a file, in place of those there, and return their number."""
    kind, rest, count = id_type(vocab_size), iter(pairs), 0
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.arrow"):
        old.unlink()
    while batch := list(islice(rest, size)):
        sides = list(zip(*batch, strict=True))
        ids = [np.array([token for sentence in side for token in sentence], kind) for side in sides]
        lengths = [np.array([len(sentence) for sentence in side], np.int32) for side in sides]
        write_lists(folder / f"{count // size:05}.arrow", ids, lengths, vocab_size, tokenizer_sha256)
        count += len(batch)
    return count
