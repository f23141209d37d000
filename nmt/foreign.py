"""Whether a text is in the language it is taken for, told by the training text: no list of languages, so it works for any.

A profile holds how often each three successive characters stand in a training text. Text of that language costs few bits a trigram
under it, another domain about one more, another language two: measured with profiles of German interface texts, 11.1 bits for more of
them, 11.3 for German news, 13.5 for French and 13.0 for English news.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from nmt.errors import UserError

SAMPLE = 10_000  # lines that make a profile
LEAST = 200  # lines of training text below which nothing is said
LONG = 20  # characters from which on a line shows its language
CLEARLY = 0.5  # bits a trigram by which one language must explain a line better
EXCESS = 1.5  # bits a trigram beyond the training text's own
FEW = 3  # lines that are let pass whatever their share
WARN_SHARE = 0.05  # of the long lines
REFUSE_SHARE = 0.5


class Profile:
    """Trigrams of a language and their cost in bits, add-one smoothed."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._counts = Counter(trigram for line in lines for trigram in trigrams(line))
        self._total = math.log2(self._counts.total() + len(self._counts) + 1)

    def bits(self, line: str) -> float:
        """Mean bits of a trigram of `line`."""
        found = trigrams(line)
        return self._total - sum(math.log2(self._counts[trigram] + 1) for trigram in found) / max(1, len(found))


class Profiles:
    """Profiles of the source and the target language of a corpus, learned from its parallel training text."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        cut = len(targets) * 9 // 10
        self.source, self.target = Profile(sources[:cut]), Profile(targets[:cut])
        rest = [line for line in targets[cut:] if len(line) >= LONG]
        self.known = len(targets) >= LEAST and bool(rest)
        self.own = _mean([self.target.bits(line) for line in rest])

    def judge(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
        """A sentence for each side that is not in the target language. Raises UserError where most references are in the source's."""
        if not self.known:
            return []
        warnings = []
        natural = self._like_source(references)[1]
        for side, text in (("references", references), ("hypotheses", hypotheses)):
            found, share = self._like_source(text)
            excess = share if side == "references" else share - natural
            if excess >= WARN_SHARE and len(found) > FEW:
                where = f"{share:.0%} of the longer {side} read like the source's language, not the target's, the first in line {found[0]}"
                if side == "references" and share >= REFUSE_SHARE:
                    raise UserError(f"{where}: is this the right file?")
                warnings.append(f"{where}: the scores are not those of a translation")
                continue
            bits = _mean([self.target.bits(line) for line in text if len(line) >= LONG])
            if bits > self.own + EXCESS:
                warnings.append(f"the {side} read like another language than the target side of the training text")
        return warnings

    def _like_source(self, text: Sequence[str]) -> tuple[list[int], float]:
        """The numbers of the long lines that the source's profile explains better than the target's, and their share of these."""
        long = [(number, line) for number, line in enumerate(text, start=1) if len(line) >= LONG]
        found = [number for number, line in long if self.source.bits(line) + CLEARLY < self.target.bits(line)]
        return found, len(found) / max(1, len(long))


def trigrams(line: str) -> list[str]:
    """Each three successive characters of `line`, lower-cased, with spaces at its ends."""
    padded = f" {' '.join(line.lower().split())} "
    return [padded[start : start + 3] for start in range(len(padded) - 2)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
