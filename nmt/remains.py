"""What shows that translations are not what people read: marks that a step before has left behind, words said again and again.

Er sagte &quot; ja &quot; .        a tokenizer's work, not undone
Er ge@@ wann                       subword pieces, not joined
das das das das                    a model caught in a loop
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.errors import UserError

WARN_SHARE = 0.01  # of the lines
REFUSE_SHARE = 0.2
REPEATED = re.compile(r"(?<!\S)(\S+(?: \S+){0,3}?)(?: \1){2}(?!\S)")


@dataclass(frozen=True)
class Mark:
    """Something that does not belong in plain text. Real text has the `natural` ones too: only their excess over the other side counts."""

    name: str
    pattern: re.Pattern[str]
    natural: bool


MARKS = (
    Mark("the subword mark `@@ `", re.compile(r"@@(?: |$)"), natural=False),
    Mark("the subword mark `▁`", re.compile("▁"), natural=False),
    Mark("the unknown piece `⁇` or `<unk>`", re.compile(r"⁇|<unk>"), natural=True),
    Mark("HTML entities such as `&quot;`", re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});"), natural=True),
    Mark("a tokenizer's spaces before `.` or `,`", re.compile(r"\w [.,](?: |$)"), natural=True),
)


def remains(hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """A sentence for each mark that stands in 1 % of the lines of one side or more, because it spoils every score.

    From 20 % on the scores would be of another kind: raises UserError.
    """
    warnings = []
    for mark in MARKS:
        lines = {
            side: [number for number, line in enumerate(text, start=1) if mark.pattern.search(line)]
            for side, text in (("hypotheses", hypotheses), ("references", references))
        }
        for side, other in (("hypotheses", "references"), ("references", "hypotheses")):
            excess = len(lines[side]) - (len(lines[other]) if mark.natural else 0)
            if excess < WARN_SHARE * len(hypotheses):
                continue
            where = (
                f"{len(lines[side])} of {len(hypotheses)} {side} (and {len(lines[other])} {other}) still hold {mark.name}, "
                f"the first in line {lines[side][0]}"
            )
            if excess >= REFUSE_SHARE * len(hypotheses):
                raise UserError(f"{where}: scores of such text mean nothing, so turn it back into plain text first")
            warnings.append(f"{where}: the scores are not those of plain text")
    return warnings


def repeats(line: str) -> bool:
    """Whether a sequence of one to four words stands three times in a row."""
    return REPEATED.search(" ".join(line.split())) is not None
