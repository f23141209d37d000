"""Whether line i of one text belongs to line i of the other or to a neighbour: one line too many, and all behind it is wrong.

Lines that belong together share trigrams of characters: hypothesis and reference many, source and reference names, numbers and cognates.

    hypotheses  Der Ofen ist an.   Die Tür ist offen.   Das Licht ist aus.
    references  Die Tür ist auf.   Das Licht ist aus.   Es regnet.              ->  shifted by 1 from line 1 on
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.errors import UserError
from nmt.foreign import trigrams

FARTHEST = 3  # lines
LEAST = 8  # lines that a shift must hold for
MARGIN = 2.5  # standard deviations beyond what chance does somewhere in a text of unrelated lines (measured: up to 4.3 of 20, 5.0 of 1,000)
REFUSE_SHARE = 0.2  # of the lines


@dataclass(frozen=True)
class Shift:
    """Lines `first` to `last` (from 1) of the left text fit those `by` lines further on in the right one."""

    first: int
    last: int
    by: int


def find_shift(left: Sequence[str], right: Sequence[str]) -> Shift | None:
    """The longest run of lines that fits a shift better than no shift, if there is one that chance cannot explain."""
    left_grams, right_grams = ([frozenset(trigrams(line)) for line in text] for text in (left, right))
    straight = [_similarity(a, b) for a, b in zip(left_grams, right_grams, strict=True)]
    certain = math.sqrt(2 * math.log(len(left) + 1)) + MARGIN
    found = []
    for by in (by for size in range(1, FARTHEST + 1) for by in (size, -size)):
        begin, end = max(0, -by), min(len(left), len(left) - by)
        gains = [_similarity(left_grams[i], right_grams[i + by]) - straight[i] for i in range(begin, end)]
        spread = math.sqrt(sum(gain * gain for gain in gains) / max(1, len(gains)))
        start, stop, total = _best_run(gains)
        if stop - start >= LEAST and spread and total > certain * spread * math.sqrt(stop - start):
            found.append((total, Shift(begin + start + 1, begin + stop, by)))
    return max(found, key=lambda one: one[0])[1] if found else None


def judge(sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]) -> list[str]:
    """A sentence for each two texts that are shifted against each other in some lines. Raises UserError where many lines are."""
    warnings = []
    for names, texts in (("hypotheses and references", (hypotheses, references)), ("sources and references", (sources, references))):
        if shift := find_shift(*texts):
            one, other = names.split(" and ")
            where = (
                f"{names} are shifted against each other: lines {shift.first:,} to {shift.last:,} of the {one} "
                f"fit the {other} {abs(shift.by)} {'line' if abs(shift.by) == 1 else 'lines'} {'further on' if shift.by > 0 else 'back'}"
            )
            if shift.last - shift.first + 1 >= REFUSE_SHARE * len(texts[0]):
                raise UserError(f"{where}; put the lines right first")
            warnings.append(where)
    return warnings


def _best_run(values: Sequence[float]) -> tuple[int, int, float]:
    """Start, end (exclusive) and sum of the run of `values` with the largest sum (Kadane)."""
    best, begin, total = (0, 0, 0.0), 0, 0.0
    for index, value in enumerate(values):
        if total <= 0:
            begin, total = index, 0.0
        total += value
        if total > best[2]:
            best = (begin, index + 1, total)
    return best


def _similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Dice's coefficient."""
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0
