"""Where two texts that should be parallel stop being so, told from the lengths of their lines.

Translations are about equally long, so |log(length src / length tgt)| is small for true pairs. Where a line is missing
on one side, everything behind it fits better when moved by one (or by the whole difference of the two counts).

    src  The cat sleeps on the mat. | Yes.      | Nobody has seen it since yesterday. | No!
    tgt  Die Katze schläft dort.    | Niemand hat sie seit gestern gesehen. | Nein!          ->  line 2
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.errors import UserError

SPREAD = 0.3  # typical |log ratio| of true pairs, English-German
CAP = 1.0  # a pair cannot count for more than this, so that one odd pair decides nothing


def first_misfit(src_lengths: Sequence[int], tgt_lengths: Sequence[int]) -> int:
    """The line (from 1) where two texts of different numbers of lines most likely stop being parallel.

    A CUSUM test (Page 1954): the evidence that a shift by one line, or by the difference of the counts, fits better is
    summed up line by line and restarted where it turns negative; the first sum that chance cannot explain marks its
    start. Short texts, where no sum gets that far, are split where the two halves, one aligned at the top and one at
    the bottom, fit best. An estimate: it is right to a line or two where sentences differ in length.
    """
    src, tgt = np.asarray(src_lengths, dtype=np.float64), np.asarray(tgt_lengths, dtype=np.float64)
    if not len(src) or not len(tgt):
        return 1
    centre = math.log((src.mean() + 1) / (tgt.mean() + 1))
    difference = len(src) - len(tgt)
    certain = math.log(len(src) + len(tgt)) + 10
    found = []
    for shift in (int(math.copysign(1, difference)), difference):
        evidence = _misfit(src, tgt, centre, 0) - _misfit(src, tgt, centre, shift)
        sums = np.concatenate(([0.0], np.cumsum(evidence)))
        lowest = np.minimum.accumulate(sums)
        beyond = np.flatnonzero(sums - lowest > certain)
        if len(beyond):
            found.append(int(np.flatnonzero(sums[: beyond[0]] == lowest[beyond[0]])[-1]))
    if not found:
        found.append(int(np.flatnonzero(sums == sums.min())[-1]))  # sums of the last shift, by the whole difference
    return min(found) + 1


def misaligned(src: str, src_lengths: Sequence[int], tgt: str, tgt_lengths: Sequence[int]) -> UserError:
    """The error to raise for two texts, called `src` and `tgt`, of which these are the lengths of the lines."""
    line = first_misfit(src_lengths, tgt_lengths)
    return UserError(
        f"{src} has {len(src_lengths):,} lines, {tgt} has {len(tgt_lengths):,}: line n of one must translate line n of the other, "
        f"and by their lengths they stop doing so at about line {line:,}"
    )


def _misfit(src: NDArray[np.float64], tgt: NDArray[np.float64], centre: float, shift: int) -> NDArray[np.float64]:
    """Per line, how badly its two sides fit, in units of SPREAD, when the longer text is read `shift` lines further on."""
    common = min(len(src), len(tgt))
    if shift > 0:
        src = src[shift:]
    elif shift < 0:
        tgt = tgt[-shift:]
    cost = np.full(common, CAP)
    both = min(common, len(src), len(tgt))
    cost[:both] = np.minimum(np.abs(np.log((src[:both] + 1) / (tgt[:both] + 1)) - centre), CAP)
    return cost / SPREAD
