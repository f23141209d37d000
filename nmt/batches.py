"""Which pairs make up update n: a pure function of the lengths and (seed, epoch).

An epoch visits the shards in a random order, a group of them at a time. Within a group the pairs are shuffled, sorted by
length, cut into updates of at most `tokens_per_update` tokens on the larger side (end symbols counted, padding not), and
the updates shuffled. Each update is cut into `microbatches` pieces, which are computed one after the other or by several
processes:

    lengths 3 4 4 | 9 9 | 12 …   ->   updates [9 9] [3 4 4] [12 …] …   ->   pieces [9] [9], [3 4] [4], …

Only lengths are held, and only of one group, so memory does not grow with the corpus.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nmt.errors import UserError
from nmt.shards import Ids, Shard, epochs_of, read_shard, shard_files
from nmt.symbols import BOS, EOS, PAD

GROUP_SHARDS = 8
Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Batch:
    """Pairs padded to tensors. B pairs, S and T tokens of the longest source and target, end symbols counted; N target tokens without
    padding. All four are `rounded`.
    """

    src: Tensor  # [B, S] int64, with end symbol
    tgt_in: Tensor  # [B, T] int64, begins with the begin symbol
    tgt_out: Tensor  # [B, T] int64, ends with the end symbol
    places: Tensor  # [N] int64: where the target tokens stand in [B * T]; behind `tokens` of them filling
    tokens: int  # target tokens, end symbols counted, padding not

    @classmethod
    def of(cls, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> "Batch":
        """The batch of these tensors, which are in main memory: only there is it free to look for the tokens."""
        places = (tgt_out != PAD).flatten().nonzero().squeeze(1)
        tokens = len(places)
        return cls(src, tgt_in, tgt_out, torch.nn.functional.pad(places, (0, rounded(tokens) - tokens)), tokens)

    def to(self, device: torch.device) -> "Batch":
        """The same on another device; to a GPU without waiting for it."""
        here = (self.src, self.tgt_in, self.tgt_out, self.places)
        ready = (tensor.pin_memory() for tensor in here) if device.type == "cuda" else here
        src, tgt_in, tgt_out, places = (tensor.to(device, non_blocking=True) for tensor in ready)
        return Batch(src, tgt_in, tgt_out, places, self.tokens)


@dataclass(frozen=True)
class Update:
    """What one step of the optimizer sees."""

    pairs: list[tuple[int, int]]  # (number of the shard, row in it), in the order of the pieces
    tokens: int  # target tokens of all pieces, end symbols counted
    count: int  # pieces, at most `microbatches`, none empty
    pieces: dict[int, Batch]  # those that were asked for, by number: 0, 1, …, count - 1


def updates(
    shards: Path, tokens_per_update: int, microbatches: int, seed: int, after: int = 0, wanted: Container[int] | None = None
) -> Iterator[Update]:
    """The updates after+1, after+2, … of the endless training on the folder `shards`, epoch after epoch.

    Of the pieces only those with a number in `wanted` (None: all) are made. Raises UserError, before the first update, when a pair alone
    is longer than an update.
    """
    epochs = _fitting(shards, tokens_per_update)
    skip, epoch = after, 0
    while True:
        for group in _groups(epochs[epoch % len(epochs)], tokens_per_update, seed, epoch):
            for rows in group.plan[skip:]:
                cuts = _cuts(rows, microbatches)
                pieces = {number: group.collate(cut) for number, cut in enumerate(cuts) if wanted is None or number in wanted}
                pairs = [(group.numbers[member], row) for member, row in group.places(rows)]
                yield Update(pairs, int(group.tgt_lengths[rows].sum()), len(cuts), pieces)
            skip = max(0, skip - len(group.plan))
        epoch += 1


@dataclass(frozen=True)
class _Group:
    """Some shards of an epoch, their pairs numbered through, and the updates made of them."""

    numbers: list[int]  # of the shards
    shards: list[Shard]
    first: Rows  # number of the first pair of each shard, and of the end
    src_lengths: Lengths  # end symbols counted
    tgt_lengths: Lengths
    plan: list[Rows]

    def places(self, rows: Rows) -> list[tuple[int, int]]:
        """For each pair the position of its shard in `shards`, and its row there."""
        members = np.searchsorted(self.first, rows, side="right") - 1
        return list(zip(members.tolist(), (rows - self.first[members]).tolist(), strict=True))

    def collate(self, rows: Rows) -> Batch:
        """The pairs with these numbers as a piece."""
        return collate([_pair(self.shards[member], row) for member, row in self.places(rows)])


def _groups(files: Sequence[Path], tokens_per_update: int, seed: int, epoch: int) -> Iterator[_Group]:
    """The groups of an epoch."""
    order = _rng(seed, epoch).permutation(len(files))
    for start in range(0, len(order), GROUP_SHARDS):
        numbers = [int(n) for n in order[start : start + GROUP_SHARDS]]
        shards = [read_shard(files[number]) for number in numbers]
        first = np.cumsum([0, *(len(shard) for shard in shards)])
        src_lengths = np.concatenate([shard.src.lengths for shard in shards]).astype(np.int64) + 1
        tgt_lengths = np.concatenate([shard.tgt.lengths for shard in shards]).astype(np.int64) + 1
        plan = plan_updates(src_lengths, tgt_lengths, tokens_per_update, _rng(seed, epoch, 1 + start))
        yield _Group(numbers, shards, first, src_lengths, tgt_lengths, plan)


def _cuts(rows: Rows, microbatches: int) -> list[Rows]:
    """The rows of an update cut into pieces."""
    return [cut for cut in np.array_split(rows, microbatches) if len(cut)]


@contextmanager
def ahead(items: Iterator[Update]) -> Iterator[Iterator[Update]]:
    """The same endless items, each made in another thread while the one before it is in use."""
    with ThreadPoolExecutor(1) as maker:

        def handed_over() -> Iterator[Update]:
            coming = maker.submit(next, items)
            while True:
                item = coming.result()
                coming = maker.submit(next, items)
                yield item

        yield handed_over()


def largest_piece(shards: Path, tokens_per_update: int, microbatches: int, seed: int) -> Batch:
    """The piece of the first group of updates that takes most memory, padding counted. Later ones are hardly larger.

    Raises UserError when a pair alone is longer than an update.
    """
    epochs = _fitting(shards, tokens_per_update)
    group = next(_groups(epochs[0], tokens_per_update, seed, 0))

    def size(rows: Rows) -> int:
        return rounded(len(rows)) * sum(rounded(int(lengths[rows].max())) for lengths in (group.src_lengths, group.tgt_lengths))

    return group.collate(max((cut for rows in group.plan for cut in _cuts(rows, microbatches)), key=size))


def plan_updates(src_lengths: Lengths, tgt_lengths: Lengths, tokens_per_update: int, rng: np.random.Generator) -> list[Rows]:
    """Cut the pairs with these lengths (end symbols counted) into shuffled updates: an array of row numbers each.

    Every row stands in exactly one update. No pair may be longer than an update.
    """
    longer = np.maximum(src_lengths, tgt_lengths)
    assert longer.max() <= tokens_per_update
    shuffled = rng.permutation(len(longer))
    order = shuffled[np.lexsort((src_lengths[shuffled], longer[shuffled]))]
    src_sums, tgt_sums = (np.concatenate([[0], np.cumsum(lengths[order])]) for lengths in (src_lengths, tgt_lengths))
    cut, plan = 0, []
    while cut < len(order):
        ends = [np.searchsorted(sums, sums[cut] + tokens_per_update, side="right") - 1 for sums in (src_sums, tgt_sums)]
        end = int(min(ends))
        plan.append(order[cut:end])
        cut = end
    return [plan[i] for i in rng.permutation(len(plan))]


def collate(pairs: Sequence[tuple[Ids, Ids]]) -> Batch:
    """Pad pairs of token ids without special tokens to tensors with them, of B, S and T as `rounded` gives them.

    The pairs that fill up B have empty sides: of their tokens only the source's end symbol is not padding, so they count for nothing.
    """
    more = rounded(len(pairs)) - len(pairs)
    src, tgt_out = (padded([*(pair[side] for pair in pairs), *[[]] * more], rounded) for side in (0, 1))
    tgt_out[len(pairs) :] = PAD
    tgt_in = torch.full_like(tgt_out, BOS)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    return Batch.of(src, tgt_in.masked_fill_(tgt_in == EOS, PAD), tgt_out)


def rounded(size: int) -> int:
    """The smallest of 1, 2, …, 16, 18, …, 32, 36, …, 64, 72, … that is at least `size`: it adds an eighth at most.

    With few sizes there are few shapes of tensors. Libraries prepare a product for each shape anew, which can take as long as the product.
    """
    step = 1 << max(0, (size - 1).bit_length() - 4)
    return -(-size // step) * step


def padded(sentences: Sequence[Ids | Sequence[int]], width: Callable[[int], int] = lambda longest: longest) -> Tensor:
    """The sentences with an end symbol behind each, padded to `width` of the longest. [B, S] int64"""
    rows = np.full((len(sentences), width(max(len(s) for s in sentences) + 1)), PAD, dtype=np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
        row[len(sentence)] = EOS
    return torch.from_numpy(rows)


def in_order(shards: Path, tokens: int) -> Iterator[Batch]:
    """All pairs of a folder once, shard by shard, sorted by length and batched to at most `tokens` padded tokens a side."""
    for path in shard_files(shards):
        shard = read_shard(path)
        longer = np.maximum(shard.src.lengths, shard.tgt.lengths) + 1
        batch: list[int] = []
        for row in np.argsort(longer, kind="stable"):
            if batch and rounded(int(longer[row])) * rounded(len(batch) + 1) > tokens:
                yield collate([_pair(shard, r) for r in batch])
                batch = []
            batch.append(int(row))
        if batch:
            yield collate([_pair(shard, r) for r in batch])


def _fitting(shards: Path, tokens_per_update: int) -> list[list[Path]]:
    """The shards that the epochs read (`epochs_of`). Raises UserError when a pair alone is longer than an update."""
    epochs = epochs_of(shards)
    for path in (path for files in epochs for path in files):
        shard = read_shard(path)
        longer = np.maximum(shard.src.lengths, shard.tgt.lengths) + 1
        if longer.max() > tokens_per_update:
            raise UserError(
                f"train.tokens_per_update is {tokens_per_update}, but pair {longer.argmax()} of {path} has {longer.max()} tokens: "
                "raise it, or lower cleaning.max_words and cleaning.max_characters"
            )
    return epochs


def _pair(shard: Shard, row: int) -> tuple[Ids, Ids]:
    return shard.src[row], shard.tgt[row]


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)
