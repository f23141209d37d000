"""Scores of translations against references. `BLEU` alone always means sacreBLEU: 13a tokens, cased, over the whole set.

Every score carries sacreBLEU's signature, which tells how it was computed and never depends on the run:

    BLEU 28.30 ± 0.68   nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0

Validation and test sets go through the same functions. Percentages are rounded to two decimals, as they are quoted.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.lines import is_blank, join_whitespace
from nmt.remains import repeats

BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SEED = "12345"  # sacreBLEU's own default


@dataclass(frozen=True)
class Score:
    """One percentage with the way it was computed."""

    score: float
    signature: str


@dataclass(frozen=True)
class Bleu(Score):
    """A BLEU with its parts, so that a low one can be understood."""

    confidence: float  # half the width of the 95 % interval, by sacreBLEU's bootstrap
    precisions: list[float]  # of 1 to 4 tokens
    brevity_penalty: float
    hypothesis_length: int  # tokens
    reference_length: int


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False) -> Bleu:
    """Corpus BLEU with its confidence interval."""
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)  # force: nmt.remains says more than its warning
    with _fixed_seed():
        found = metric.corpus_score(hypotheses, [references], n_bootstrap=BOOTSTRAP_SAMPLES)
    return Bleu(
        score=round(found.score, 2),
        signature=str(metric.get_signature()),
        confidence=round(float(found._ci), 2),
        precisions=[round(float(precision), 2) for precision in found.precisions],
        brevity_penalty=round(float(found.bp), 4),
        hypothesis_length=int(found.sys_len),
        reference_length=int(found.ref_len),
    )


def chrf(hypotheses: Sequence[str], references: Sequence[str], word_order: int = 0) -> Score:
    """Corpus chrF2 (Popović 2015); with `word_order` 2 it is chrF++ (Popović 2017)."""
    return _corpus_score(CHRF(word_order=word_order), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus translation edit rate (Snover et al. 2006), lower is better, uncased as in tercom. Slow: 10 s for 3,000 lines."""
    return _corpus_score(TER(), hypotheses, references)


def sentence_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[float], str]:
    """BLEU of each line alone, of effective order, so that short lines do not all score 0; and the signature."""
    return _line_scores(BLEU(effective_order=True), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[float], str]:
    """chrF2 of each line alone; and the signature."""
    return _line_scores(CHRF(), hypotheses, references)


def evaluate(sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str], unseen: Sequence[bool]) -> dict[str, Any]:
    """Everything that is said of a set of equally many lines, one at least: scores, lengths, and what looks wrong.

    `unseen` tells of each line whether its source is missing from the training text; without any there is no `bleu_unseen` (None).
    """
    lines = len(hypotheses)
    texts = {"source": sources, "reference": references, "hypothesis": hypotheses}
    scores = {
        "bleu": bleu(hypotheses, references),
        "bleu_unseen": bleu(list(compress(hypotheses, unseen)), list(compress(references, unseen))) if any(unseen) else None,
        "bleu_uncased": bleu(hypotheses, references, lowercase=True),
        "bleu_intl": bleu(hypotheses, references, tokenize="intl"),
        "chrf": chrf(hypotheses, references),
        "chrf++": chrf(hypotheses, references, word_order=2),
        "ter": ter(hypotheses, references),
    }
    copied = sum(hypothesis == source and not is_blank(source) for hypothesis, source in zip(hypotheses, sources, strict=True))
    return {
        "lines": lines,
        "unseen_lines": sum(unseen),
        **{name: found and asdict(found) for name, found in scores.items()},
        "words": {name: sum(len(line.split()) for line in text) for name, text in texts.items()},
        "blank_lines": {name: sum(map(is_blank, text)) for name, text in texts.items()},
        "share_equal_to_source": round(copied / lines, 4),
        # one to four words three times in a row; the references tell how much of that is right
        "share_repeating": {name: round(sum(map(repeats, text)) / lines, 4) for name, text in texts.items()},
    }


def standing_in(training: Iterable[str], wanted: set[str]) -> set[str]:
    """Those of the `wanted` lines (joined ones) that stand in the `training` text, which is streamed and not held."""
    return {joined for line in training if (joined := join_whitespace(line)) in wanted}


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    score = metric.corpus_score(hypotheses, [references]).score
    return Score(round(float(score), 2), str(metric.get_signature()))


def _line_scores(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[float], str]:
    pairs = zip(hypotheses, references, strict=True)
    scores = [round(float(metric.sentence_score(hypothesis, [reference]).score), 2) for hypothesis, reference in pairs]
    return scores, str(metric.get_signature())


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """sacreBLEU takes the bootstrap's seed from the environment alone; a user's own must not change the scores."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = BOOTSTRAP_SEED
    try:
        yield
    finally:
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before
