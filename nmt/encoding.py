"""Token ids of a text of any size, made by several processes: the same shards for any number of them and any size of chunk.

    1. encode   each chunk by itself; its pairs are dealt to the shards like cards, so that each shard is a sample of the whole text
    2. gather   of each shard what all chunks have of it, in the order of the text; one Arrow file (nmt/shards.py)

    work/000000/src.npy, tgt.npy               token ids of the chunk's pairs, shard after shard
    work/000000/lengths.npy                    [pairs, 2] tokens of each side, in the same order
    work/000000/pairs.npy                      [shards] how many pairs each shard gets
    work/000000/counts.json, used.npy          what `statistics` adds up
    work/shard-00000/pairs.arrow               what step 2 leaves

A folder is whole or absent, so a run that was stopped goes on behind its last chunk or shard. The pairs of a shard stay in the order of the
text: whoever trains on them shuffles them anew in each epoch (nmt/batches.py).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.chance import mixed
from nmt.chunks import Chunk, ParallelText, made
from nmt.shards import SIDES, id_type, write_lists
from nmt.tokenizer import Tokenizer

Places = NDArray[np.int64]
Lengths = NDArray[np.int32]
Ids = NDArray[np.unsignedinteger[Any]]
CHECKED = 100  # one line of so many is decoded again
BYTES = slice(4, 260)  # ids of the byte pieces


@dataclass(frozen=True)
class Encoder:
    """Step 1, to be called by any process with a chunk of `text`, whose pairs go to so many `shards`."""

    tokenizer: Tokenizer
    text: ParallelText
    shards: int
    work: Path

    def __call__(self, chunk: Chunk) -> int:
        """Leave the chunk's folder; returns the number of pairs. What is there already is kept."""
        if not folder_of(self.work, chunk).exists():
            with made(folder_of(self.work, chunk)) as folder:
                self._encode(chunk, folder)
        return chunk.lines

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """Of the ids in a shard."""
        return id_type(self.tokenizer.vocab_size)

    def _encode(self, chunk: Chunk, folder: Path) -> None:
        shard_of = dealt(chunk.first, chunk.lines, self.shards)
        order = np.argsort(shard_of, kind="stable").tolist()
        lengths = np.empty((chunk.lines, 2), dtype=np.int32)
        used = np.zeros((2, self.tokenizer.vocab_size), dtype=np.int64)
        counts: dict[str, list[int]] = {"words": [], "characters": [], "checked": [], "altered": []}
        for side, lines in enumerate(self.text.read(chunk)):
            sentences = self.tokenizer.encode_arrays([lines[place] for place in order])
            ids = np.concatenate(sentences).astype(self.dtype)
            np.save(folder / f"{SIDES[side]}.npy", ids)
            lengths[:, side] = list(map(len, sentences))
            used[side] = np.bincount(ids, minlength=self.tokenizer.vocab_size)
            checked = lines[-chunk.first % CHECKED :: CHECKED]
            counts["words"].append(sum(len(line.split()) for line in lines))
            counts["characters"].append(sum(map(len, lines)))
            counts["checked"].append(len(checked))
            counts["altered"].append(sum(self.tokenizer.decode(self.tokenizer.encode([line])[0]) != line for line in checked))
        np.save(folder / "lengths.npy", lengths)
        np.save(folder / "pairs.npy", np.bincount(shard_of, minlength=self.shards))
        np.save(folder / "used.npy", used)
        (folder / "counts.json").write_text(json.dumps(counts))


@dataclass(frozen=True)
class Gatherer:
    """Step 2, to be called by any process with the number of a shard."""

    encoder: Encoder

    def __call__(self, shard: int) -> Path:
        """Leave the shard's folder; returns its file. What is there already is kept."""
        file = gathered(self.encoder.work, shard)
        if not file.exists():
            with made(file.parent) as folder:
                self._gather(shard, folder / file.name)
        return file

    def _gather(self, shard: int, path: Path) -> None:
        lengths: list[Lengths] = []  # of each chunk [pairs, 2]
        ids: tuple[list[Ids], list[Ids]] = ([], [])
        for chunk in self.encoder.text.chunks():
            here = folder_of(self.encoder.work, chunk)
            pairs = np.load(here / "pairs.npy")
            first, count = int(pairs[:shard].sum()), int(pairs[shard])
            of_chunk = np.load(here / "lengths.npy")
            lengths.append(of_chunk[first : first + count])
            for side, name in enumerate(SIDES):
                begin = int(of_chunk[:first, side].sum())
                end = begin + int(lengths[-1][:, side].sum())
                ids[side].append(np.array(np.load(here / f"{name}.npy", mmap_mode="r")[begin:end]))
        together = np.concatenate(lengths)
        pieces = self.encoder.tokenizer
        joined = [np.concatenate(side) for side in ids]
        write_lists(path, joined, [together[:, 0], together[:, 1]], pieces.vocab_size, pieces.sha256)


def dealt(first: int, count: int, shards: int) -> Places:
    """The shard of each of `count` pairs from pair number `first` on. [count]

    Of `shards` pairs in a row each goes to another shard, in an order that chance decides, the same at any time: so no shard is more than
    a pair larger than another, and nothing that repeats in the text gathers in one of them.
    """
    begin, end = first // shards, -(-(first + count) // shards)
    numbers = np.arange(begin * shards, end * shards, dtype=np.uint64).reshape(-1, shards)  # [rows, shards]
    order: Places = np.argsort(mixed(numbers), axis=1, kind="stable").reshape(-1)
    return order[first % shards :][:count]


def statistics(encoder: Encoder) -> dict[str, Any]:
    """What the text is made of, for people: by side, with shares of the whole. Of the chunks that step 1 left."""
    used = np.zeros((2, encoder.tokenizer.vocab_size), dtype=np.int64)
    histogram = np.zeros((2, 1), dtype=np.int64)
    counts: dict[str, NDArray[np.int64]] = {}
    for chunk in encoder.text.chunks():
        folder = folder_of(encoder.work, chunk)
        used += np.load(folder / "used.npy")
        lengths = np.load(folder / "lengths.npy")
        for side in (0, 1):
            found = np.bincount(lengths[:, side])
            if len(found) > histogram.shape[1]:
                histogram = np.pad(histogram, ((0, 0), (0, len(found) - histogram.shape[1])))
            histogram[side, : len(found)] += found
        for name, numbers in json.loads((folder / "counts.json").read_text()).items():
            counts[name] = counts.get(name, np.zeros(2, dtype=np.int64)) + np.array(numbers)
    return {"pairs": encoder.text.lines} | {
        name: {
            **{count: int(numbers[side]) for count, numbers in counts.items()},
            "pieces": int(used[side].sum()),
            "pieces_per_word": round(float(used[side].sum() / max(counts["words"][side], 1)), 4) if counts else 0.0,
            "byte_pieces": int(used[side, BYTES].sum()),
            "vocabulary_used": int((used[side] > 0).sum()),
            "longest": int(np.flatnonzero(histogram[side])[-1]) if histogram[side].any() else 0,
            "lengths": _tens(histogram[side]),
        }
        for side, name in enumerate(SIDES)
    }


def gathered(work: Path, shard: int) -> Path:
    """The file of a shard that step 2 leaves, alone in its folder."""
    return work / f"shard-{shard:05}" / "pairs.arrow"


def folder_of(work: Path, chunk: Chunk) -> Path:
    """Where a chunk's result stands."""
    return work / f"{chunk.number:06}"


def _tens(histogram: NDArray[np.int64]) -> list[int]:
    """Lines of 0 to 9 pieces, of 10 to 19, …; those of 200 and more together."""
    tens = [int(histogram[start : start + 10].sum()) for start in range(0, min(len(histogram), 200), 10)]
    return [*tens, int(histogram[200:].sum())] if len(histogram) > 200 else tens
