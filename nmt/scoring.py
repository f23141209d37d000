"""Scores of translations against references. `BLEU` alone always means sacreBLEU: 13a tokens, cased, over the whole set.

Every score carries sacreBLEU's signature, which tells how it was computed and never depends on the run:

    BLEU 28.30 ± 0.68   nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0

Validation and test sets go through the same functions. Percentages are rounded to two decimals, as they are quoted. What makes the
paper's BLEU another number than this one is in `nmt.moses`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmt.moses import moses_name, moses_tokens, plain_quotes, split_compounds

BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SEED = "12345"  # sacreBLEU's own default
Scored = tuple[list[float], str]  # a percentage for each line, and the signature


@dataclass(frozen=True)
class Score:
    """One percentage with the way it was computed."""

    score: float
    confidence: float  # half the width of the 95 % interval, by sacreBLEU's bootstrap over the lines
    signature: str


@dataclass(frozen=True)
class Bleu(Score):
    """A BLEU with its parts, so that a low one can be understood."""

    precisions: list[float]  # of 1 to 4 tokens
    brevity_penalty: float
    hypothesis_length: int  # tokens
    reference_length: int


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False) -> Bleu:
    """Corpus BLEU with its confidence interval."""
    return _bleu(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references)  # nmt.remains says more than its warning


def moses_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> dict[str, Bleu]:
    """The BLEU of papers, as `multi-bleu.perl` counts it (no smoothing): over Moses tokens, with compounds split, with plain quotes too."""
    sides = hypotheses, references
    plain = [moses_tokens(side, language) for side in sides]
    split = [list(map(split_compounds, side)) for side in plain]
    quotes = [list(map(split_compounds, moses_tokens(list(map(plain_quotes, side)), language))) for side in sides]
    return {
        name: _bleu(BLEU(tokenize="none", smooth_method="none", force=True), hypothesis, reference, moses_name(language) + steps)
        for name, steps, (hypothesis, reference) in (
            ("bleu_moses", "", plain),
            ("bleu_moses_split", "+split", split),
            ("bleu_moses_split_quotes", "+split+quotes", quotes),
        )
    }


def chrf(hypotheses: Sequence[str], references: Sequence[str], word_order: int = 0) -> Score:
    """Corpus chrF2 (Popović 2015); with `word_order` 2 it is chrF++ (Popović 2017)."""
    metric = {"chrF": CHRF(word_order=word_order)}
    with _fixed_seed():  # its paired test is asked for one system, because `corpus_score` cannot take a sample that scores 0
        test = PairedTest([("", hypotheses)], metric, [references], test_type="bs", n_samples=BOOTSTRAP_SAMPLES)
        signatures, scores = test()
    (name,) = signatures
    found = scores[name][0]
    assert isinstance(found, Result)
    return Score(round(float(found.score), 2), round(float(found.ci or 0), 2), str(signatures[name]))


def edits(hypotheses: Sequence[str], references: Sequence[str]) -> list[tuple[float, float]]:
    """Of each line, the edits (shifts among them) to the reference and its words, as tercom counts, uncased. Slow: 4 ms a line."""
    metric = TER()
    scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return [(score.num_edits, score.ref_length) for score in scores]


def ter(counted: Sequence[tuple[float, float]]) -> Score:
    """Corpus translation edit rate (Snover et al. 2006) from the `edits` of its lines; lower is better."""
    counts = np.asarray(counted, dtype=np.float64)  # [lines, 2]
    metric = TER()
    metric.sentence_score("", [""])  # after which it knows its signature
    metric.n_bootstrap, metric.seed = BOOTSTRAP_SAMPLES, BOOTSTRAP_SEED
    return Score(round(rate(counts), 2), _confidence(rate, counts), str(metric.get_signature()))


def mean(scored: Scored) -> Score:
    """The score of a set that is the mean of its lines' scores, as a neural metric's is."""
    scores, signature = np.asarray(scored[0], dtype=np.float64), scored[1]
    bootstrap = f"bs:{BOOTSTRAP_SAMPLES}|seed:{BOOTSTRAP_SEED}"
    return Score(round(float(scores.mean()), 2), _confidence(np.mean, scores), f"{bootstrap}|{signature}")


def rate(counts: Sequence[tuple[float, float]] | NDArray[np.float64]) -> float:
    """TER in percent of the `edits` of some lines, [lines, 2]; without any word of reference each is wrong."""
    count, words = np.asarray(counts, dtype=np.float64).sum(axis=0)
    return float(100 * count / words) if words else 100.0 * bool(count)


def sentence_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """BLEU of each line alone, of effective order, so that short lines do not all score 0; and the signature."""
    return _line_scores(BLEU(effective_order=True), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """chrF2 of each line alone; and the signature."""
    return _line_scores(CHRF(), hypotheses, references)


def _confidence(score: Callable[[NDArray[np.float64]], Any], lines: NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval of `score` by a bootstrap over `lines`, [lines, …]."""
    rng = np.random.default_rng(int(BOOTSTRAP_SEED))
    drawn = np.sort([score(lines[rng.choice(len(lines), size=len(lines))]) for _ in range(BOOTSTRAP_SAMPLES)])
    outside = BOOTSTRAP_SAMPLES // 40  # 2.5 % at either end
    return round(float(drawn[-1 - outside] - drawn[outside]) / 2, 2)


def _bleu(metric: BLEU, hypotheses: Sequence[str], references: Sequence[str], tokens: str | None = None) -> Bleu:
    """What `metric` finds; `tokens` names in the signature how text was cut that `metric` only splits at spaces."""
    with _fixed_seed():
        found = metric.corpus_score(hypotheses, [references], n_bootstrap=BOOTSTRAP_SAMPLES)
    signature = str(metric.get_signature())
    return Bleu(
        score=round(found.score, 2),
        confidence=round(float(found._ci), 2),
        signature=signature.replace("|tok:none|", f"|tok:{tokens}|") if tokens else signature,
        precisions=[round(float(precision), 2) for precision in found.precisions],
        brevity_penalty=round(float(found.bp), 4),
        hypothesis_length=int(found.sys_len),
        reference_length=int(found.ref_len),
    )


def _line_scores(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
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
