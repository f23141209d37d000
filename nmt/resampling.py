"""Subword sampling: the pairs of a folder of shards in other pieces, drawn anew for each epoch.

    train/00000.arrow                  the text in its own pieces
    train/sampled-000/00000.arrow      the same pairs, row by row, as the first epoch sees them

What is drawn depends on the epoch, the shard and the block of rows, so on no process, chunk or order of work. SentencePiece can draw too,
but not twice the same: its generator takes more than the seed it is given, and differs from process to process (0.2.3).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nmt.chunks import made
from nmt.config import Config
from nmt.encoding import gathered
from nmt.shards import Ids, Side, read_shard, write_lists
from nmt.tokenizer import Tokenizer

BLOCK = 1000  # rows that are drawn with one generator
CANDIDATES = 64  # segmentations of a line that a unigram model draws from: l in Kudo 2018, §3.2
WORD_BEGIN = "▁"
Numbers = NDArray[np.int64]


class Sampling(Config):
    """Section `corpora.<c>.subword_sampling`: the training text in other pieces in each epoch.

    Of a bpe tokenizer each merge is left out with probability `alpha` (BPE-dropout, Provilkov et al. 2020: 0.1); of a unigram one a
    segmentation is drawn with a probability in proportion to its own to the power of `alpha` (Kudo 2018: 0.1 to 0.5).
    """

    alpha: float = Field(gt=0, le=1)
    epochs: int = Field(ge=1, le=1000)  # that differ; then they come again


@dataclass(frozen=True)
class Resampler:
    """To be called by any process with the numbers of an epoch and of a shard that stands in the folder `work` (nmt/encoding.py)."""

    tokenizer: Tokenizer
    kind: Literal["bpe", "unigram"]
    config: Sampling
    work: Path

    def __call__(self, task: tuple[int, int]) -> tuple[int, int]:
        """Leave that shard as the epoch sees it; returns its pieces, source and target. What is there already is kept."""
        path = self.drawn(*task)
        if not path.exists():
            shard = read_shard(gathered(self.work, task[1]))
            sides = [self._drawn(side, (*task, number)) for number, side in enumerate((shard.src, shard.tgt))]
            with made(path.parent) as folder:
                ids, lengths = zip(*sides, strict=True)
                write_lists(folder / path.name, ids, lengths, shard.vocab_size, shard.tokenizer_sha256)
        found = read_shard(path)
        return len(found.src.ids), len(found.tgt.ids)

    def drawn(self, epoch: int, shard: int) -> Path:
        """The file that this leaves, alone in its folder."""
        return self.work / f"sampled-{epoch:03}-{shard:05}" / "pairs.arrow"

    def _drawn(self, side: Side, key: tuple[int, int, int]) -> tuple[Ids, NDArray[np.int32]]:
        """The ids of all rows, joined, and their number in each."""
        rows = len(side.offsets) - 1
        blocks = []
        for first in range(0, rows, BLOCK):
            offsets = side.offsets[first : first + BLOCK + 1]
            ids, rng = side.ids[offsets[0] : offsets[-1]], np.random.default_rng([*key, first])
            draw = self._merges.draw if self.kind == "bpe" else self._draw_whole
            blocks.append(draw(ids.astype(np.int64), np.diff(offsets), self.config.alpha, rng))
        joined, lengths = (np.concatenate([block[part] for block in blocks]) for part in (0, 1))
        return joined.astype(side.ids.dtype), lengths.astype(np.int32)

    @cached_property
    def _merges(self) -> "Merges":
        return Merges(self.tokenizer)

    def _draw_whole(self, ids: Numbers, lengths: Numbers, alpha: float, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Of a unigram model: for each line one of its likeliest segmentations."""
        drawn = []
        for line in np.split(ids, np.cumsum(lengths)[:-1]):
            found = self.tokenizer.likeliest(self.tokenizer.decode(line.tolist()), CANDIDATES) if len(line) else [([], 0.0)]
            scores = alpha * np.array([score for _, score in found])
            weights = np.exp(scores - scores.max())
            drawn.append(found[rng.choice(len(found), p=weights / weights.sum())][0])
        return np.array([i for sentence in drawn for i in sentence], dtype=np.int64), np.array(list(map(len, drawn)), dtype=np.int64)


class Merges:
    """The merges of a BPE tokenizer, carried out on many words at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary()
        self._size = len(vocabulary)
        number = {piece: i for i, (piece, _) in enumerate(vocabulary) if piece}
        characters = [[number[c] for c in piece] if piece else [i] for i, (piece, _) in enumerate(vocabulary)]
        self._first = np.cumsum([0, *map(len, characters)])  # of each id, in `_characters`
        self._characters = np.array([i for each in characters for i in each])
        self._word_begin = number.get(WORD_BEGIN, -1)
        splits = [(p[:cut], p[cut:], i) for p, i in number.items() for cut in range(1, len(p)) if p[:cut] in number and p[cut:] in number]
        keys = np.array([number[left] * self._size + number[right] for left, right, _ in splits], dtype=np.int64)
        order = np.argsort(keys)
        self._keys = keys[order]
        self._merged = np.array([i for _, _, i in splits], dtype=np.int64)[order]
        scores = np.array([score for _, score in vocabulary])
        self._ranks = np.argsort(np.argsort(-scores, kind="stable"))[self._merged]  # 0 is merged first

    def draw(self, ids: Numbers, lengths: Numbers, alpha: float, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Lines, their ids joined, in pieces drawn anew by Algorithm 1 of Provilkov et al. 2020; with `alpha` 0 in their usual ones.

        Returns ids and lengths likewise. Each word begins as characters. At each step every possible merge is left out with probability
        `alpha`, and of the others the one that stands first in the tokenizer's order is made; a word to which none is left is finished.
        """
        counts = self._first[ids + 1] - self._first[ids]
        symbols = self._characters[np.repeat(self._first[ids] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
        lines = np.repeat(np.repeat(np.arange(len(lengths)), lengths), counts)
        begins = symbols == self._word_begin
        begins[1:] |= lines[1:] != lines[:-1]
        words = np.cumsum(begins)  # number of the word that each symbol belongs to
        alive = np.arange(len(symbols))  # places of the symbols of words that are not finished
        dropped = np.zeros(len(symbols), dtype=bool)  # joined to the symbol before
        while len(alive) > 1:
            here, owner = symbols[alive], words[alive]
            ranks = np.full(len(alive), self._size)
            merged = np.zeros(len(alive), dtype=np.int64)
            pair = np.flatnonzero(owner[1:] == owner[:-1])
            if alpha:
                pair = pair[rng.random(len(pair)) >= alpha]
            wanted = here[pair] * self._size + here[pair + 1]
            found = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
            known = self._keys[found] == wanted
            ranks[pair[known]], merged[pair[known]] = self._ranks[found[known]], self._merged[found[known]]
            starts = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))
            best = np.repeat(np.minimum.reduceat(ranks, starts), np.diff(starts, append=len(owner)))
            chosen = np.flatnonzero((ranks == best) & (best < self._size))
            chosen = chosen[np.diff(owner[chosen], prepend=-1) != 0]  # the leftmost of each word
            symbols[alive[chosen]] = merged[chosen]
            dropped[alive[chosen + 1]] = True
            alive = alive[(best < self._size) & ~dropped[alive]]
        return symbols[~dropped], np.bincount(lines[~dropped], minlength=len(lengths))
