"""Which of very many things stood there before, told from 16 bytes of hash for each, of which few are in memory at a time.

    keys   a b a c b a    ->    False False True False True True

The keys are shared out by their first bits; equal ones fall into the same share, so each share is sorted by itself. That two different
things have one key is as good as impossible: 2^-128 for each two of them, 10^-24 for the paper's 36 million pairs taken together.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

SHARE = 2_000_000  # keys sorted at a time: about 200 MB
Keys = NDArray[np.uint64]  # [things, 2]


def key_of(text: str) -> bytes:
    """The 16 bytes that stand for `text`."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def keys_of(texts: Iterable[str]) -> Keys:
    """The keys of `texts`, in order. [texts, 2]"""
    return np.frombuffer(b"".join(map(key_of, texts)), dtype=np.uint64).reshape(-1, 2)


def repeated(read: Callable[[], Iterator[Keys]], share: int = SHARE) -> NDArray[np.bool_]:
    """For each key whether an equal one comes before it. [keys]

    `read` gives all keys in order, piece by piece, anew each time that it is called: once to count them, and once for each share.
    """
    total = sum(map(len, read()))
    bits = (total // share).bit_length()
    found = np.zeros(total, dtype=np.bool_)
    for number in range(1 << bits):
        pieces, places, first = [], [], 0
        for keys in read():
            chosen = np.flatnonzero(keys[:, 0] >> np.uint64(64 - bits) == number) if bits else np.arange(len(keys))
            pieces.append(keys[chosen])
            places.append(first + chosen)
            first += len(keys)
        if pieces:
            mine, where = np.concatenate(pieces), np.concatenate(places)
            order = np.lexsort((mine[:, 1], mine[:, 0]))  # stable: of equal keys the first stays the first
            mine = mine[order]
            found[where[order[1:][(mine[1:] == mine[:-1]).all(axis=1)]]] = True
    return found
