"""Cleaning of a text of any size, by several processes, with the same result for any number of them and any size of chunk.

    1. judge   each chunk by itself (nmt/cleaning.py); what is kept so far goes into a folder of its own, with keys of the pairs
    2. compare the keys of all chunks: what stood there before is dropped too (nmt/duplicates.py)
    3. join    the chunks in their order; every pair that was read ends in the clean text or in the ledger

    work/000000/src, tgt       lines kept so far
    work/000000/rules.npy      [lines read] uint8: 0 kept so far, n dropped by RULES[n - 1]
    work/000000/marks.npy      [lines kept so far] uint8: CHANGED and LEAKED, added
    work/000000/pairs.npy, sources.npy     their keys

A chunk's folder is whole or absent, so a run that was stopped goes on behind its last chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nmt.chunks import Chunk, ParallelText, made, parallel_text
from nmt.cleaning import RULES, Cleaner, CleaningConfig
from nmt.duplicates import keys_of, repeated
from nmt.errors import UserError
from nmt.ledger import Ledger
from nmt.raw import Part

CHANGED, LEAKED = 1, 2
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Judge:
    """Step 1, to be called by any process with a chunk."""

    cleaner: Cleaner
    text: ParallelText
    work: Path

    def __call__(self, chunk: Chunk) -> int:
        """Leave the chunk's folder; returns the number of lines. What is there already is kept."""
        if not folder_of(self.work, chunk).exists():
            with made(folder_of(self.work, chunk)) as folder:
                self._judge(chunk, folder)
        return chunk.lines

    def _judge(self, chunk: Chunk, folder: Path) -> None:
        cleaner, config = self.cleaner, self.cleaner.config
        rules = np.zeros(chunk.lines, dtype=np.uint8)
        kept: list[tuple[str, str]] = []
        marks = bytearray()
        for number, pair in enumerate(zip(*self.text.read(chunk), strict=True)):
            src, tgt = prepared = (cleaner.prepare(pair[0]), cleaner.prepare(pair[1]))
            rule = cleaner.rule(src, tgt)
            if rule is None:
                kept.append(prepared)
                marks.append((CHANGED if prepared != pair else 0) + (LEAKED if cleaner.leaks(src) else 0))
            else:
                rules[number] = RULES.index(rule) + 1
        for side, name in enumerate(("src", "tgt")):
            (folder / name).write_bytes("".join(f"{pair[side]}\n" for pair in kept).encode())
        np.save(folder / "rules.npy", rules)
        np.save(folder / "marks.npy", np.frombuffer(bytes(marks), dtype=np.uint8))
        if config.drop_duplicates:
            np.save(folder / "pairs.npy", keys_of(f"{src}\n{tgt}" for src, tgt in kept))  # no line holds \n
        if config.drop_duplicate_sources:
            np.save(folder / "sources.npy", keys_of(src for src, _ in kept))


def find_duplicates(text: ParallelText, work: Path, config: CleaningConfig) -> dict[str, Marks]:
    """Step 2: by rule, which of the lines kept so far it drops, chunk after chunk. [lines kept so far]

    A pair that stood there before is named duplicate, even if its source, which then did so as well, is looked at too.
    """

    def repeated_of(name: str) -> Marks:
        return repeated(lambda: (np.load(folder_of(work, chunk) / f"{name}.npy") for chunk in text.chunks()))

    found = {}
    if config.drop_duplicates:
        found["duplicate"] = repeated_of("pairs")
    if config.drop_duplicate_sources:
        found["duplicate_source"] = repeated_of("sources") & ~found.get("duplicate", np.False_)
    return found


def join(
    text: ParallelText, work: Path, parts: Sequence[Part], duplicates: dict[str, Marks], outs: tuple[Path, Path], ledger: Ledger
) -> dict[str, Any]:
    """Step 3: write the clean text and the ledger; returns the content of cleaning.json.

    Raises UserError when the text is not as long as its `parts` say, and RuntimeError, which would be a fault of ours, unless every pair
    that was read is in the clean text or in the ledger.
    """
    read = np.array([part.lines for part in parts], dtype=np.int64)
    if read.sum() != text.lines:
        raise UserError(f"{text.src} has {text.lines:,} lines, but the manifest says {read.sum():,}: run the stage `fetch` again")
    ends = np.cumsum(read)
    counts = np.zeros((len(RULES) + 1, len(parts)), dtype=np.int64)  # kept, then by rule
    changed = leaked = first = 0
    with outs[0].open("wb") as src, outs[1].open("wb") as tgt:
        for chunk in text.chunks():
            folder = folder_of(work, chunk)
            rules, marks = np.load(folder / "rules.npy"), np.load(folder / "marks.npy")
            candidates = np.flatnonzero(rules == 0)
            for rule, found in duplicates.items():
                rules[candidates[found[first : first + len(candidates)]]] = RULES.index(rule) + 1
            first += len(candidates)
            kept = rules[candidates] == 0
            for stream, name in ((src, "src"), (tgt, "tgt")):
                _copy(folder / name, kept, stream)
            changed += int((marks[kept] & CHANGED != 0).sum())
            leaked += int((marks[kept] & LEAKED != 0).sum())
            places = np.arange(chunk.first, chunk.first + chunk.lines)
            part_of = np.searchsorted(ends, places, side="right")
            np.add.at(counts, (rules, part_of), 1)
            lost = np.flatnonzero(rules)
            lines = places[lost] + 1
            lines_of_part = lines - ends[part_of[lost]] + read[part_of[lost]]
            ledger.drop(
                (parts[part].name, line, train_line, RULES[rule - 1])
                for part, line, train_line, rule in zip(
                    part_of[lost].tolist(), lines_of_part.tolist(), lines.tolist(), rules[lost].tolist(), strict=True
                )
            )
    kept_lines, dropped = counts[0], counts[1:]
    if (counts.sum(axis=0) != read).any() or parallel_text(*outs, text.every).lines != kept_lines.sum() or ledger.count != dropped.sum():
        raise RuntimeError("cleaning lost count: kept + dropped is not what was read")
    return {
        "read": text.lines,
        "kept": int(kept_lines.sum()),
        "dropped": dict(zip(RULES, dropped.sum(axis=1).tolist(), strict=True)),
        "changed": {"join_whitespace": changed},
        "leaked": leaked,
        "parts": [
            {"name": part.name, "read": part.lines, "kept": int(counts[0, number])}
            | {"dropped": {rule: int(count) for rule, count in zip(RULES, dropped[:, number], strict=True) if count}}
            for number, part in enumerate(parts)
        ],
    }


def _copy(path: Path, kept: Marks, stream: BinaryIO) -> None:
    """Append the lines of the file `path` that are `kept`."""
    text = path.read_bytes()
    if not kept.all():
        text = b"".join(line + b"\n" for line in compress(text.split(b"\n"), kept.tolist()))
    stream.write(text)


def folder_of(work: Path, chunk: Chunk) -> Path:
    """Where a chunk's result stands."""
    return work / f"{chunk.number:06}"
