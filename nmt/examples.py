"""Which translations a person looks at: the best, the worst, and some by chance, with the words that differ.

A row is a line of `sentences.parquet` as a dictionary: line, source, reference, hypothesis, chrf and more.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from statistics import median
from typing import Any

from nmt.lines import is_blank

Row = dict[str, Any]
Piece = tuple[str, bool]  # text, and whether it differs
DRAWN = 8
EXTREME = 6
SALT = "examples"  # decides which lines chance draws: the same in every run, so that two models show the same ones


def choose(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Eight lines drawn by chance, then the six best and the six worst of the others by chrF; no source twice, none blank.

    Best and worst are looked for in the longer half, because a single word is easily right or wrong. Of equal ones the longer goes first.
    """
    different = list({row["source"]: row for row in rows if not is_blank(row["source"])}.values())
    drawn = sorted(different, key=lambda row: hashlib.sha256(f"{SALT} {row['line']}".encode()).digest())[:DRAWN]
    middle = median(row["reference_words"] for row in different) if different else 0
    rest = [row for row in different if row not in drawn and row["reference_words"] >= middle]
    rest.sort(key=lambda row: (-row["chrf"], -row["reference_words"], row["line"]))
    best = rest[: min(EXTREME, (len(rest) + 1) // 2)]
    worst = sorted(rest[len(best) :], key=lambda row: (row["chrf"], -row["reference_words"], row["line"]))[:EXTREME]
    return {"drawn": sorted(drawn, key=lambda row: int(row["line"])), "best": best, "worst": worst}


def differences(text: str, other: str) -> list[Piece]:
    """`text` cut into pieces, of which those are marked whose words `other` has not in that place."""
    tokens = re.findall(r"\s+|\S+", text)
    words = [index for index, token in enumerate(tokens) if not token.isspace()]
    blocks = SequenceMatcher(None, [tokens[index] for index in words], other.split(), autojunk=False).get_matching_blocks()
    differing = set(words) - {words[index] for block in blocks for index in range(block.a, block.a + block.size)}
    differing |= {index for index in range(len(tokens)) if {index - 1, index + 1} <= differing}  # the space between two such words
    groups = groupby(range(len(tokens)), differing.__contains__)
    return [("".join(tokens[index] for index in group), differs) for differs, group in groups]


def by_length(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of the lines of 1, 2, 3 to 4, 5 to 8, 9 to 16, … words of source: how many, mean chrF, words over the reference's, how many were cut.

    As {"first", "last", "lines", "chrf", "ratio", "cut"}.
    """
    buckets: dict[int, list[Row]] = {}
    for row in rows:
        if row["source_words"]:
            buckets.setdefault((row["source_words"] - 1).bit_length(), []).append(row)
    return [
        {
            "first": (1 << power >> 1) + 1,
            "last": 1 << power,
            "lines": len(found),
            "chrf": sum(row["chrf"] for row in found) / len(found),
            "ratio": sum(row["hypothesis_words"] for row in found) / max(1, sum(row["reference_words"] for row in found)),
            "cut": sum(not row["finished"] for row in found),
        }
        for power, found in sorted(buckets.items())
    ]
