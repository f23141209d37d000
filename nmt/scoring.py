"""Scores of translations against references. `BLEU` alone always means sacreBLEU: 13a tokens, cased, over the whole set.

Every score carries sacreBLEU's signature, which tells how it was computed and never depends on the run:

    BLEU 28.30 ± 0.68   nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0

Validation and test sets go through the same functions. Percentages are rounded to two decimals, as they are quoted. What makes the
paper's BLEU another number than this one is in `nmt.moses`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmt.lines import is_blank, join_whitespace
from nmt.moses import moses_name, moses_tokens, plain_quotes, split_compounds
from nmt.progress import Progress
from nmt.remains import repeats
from nmt.workers import spread

BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SEED = "12345"  # sacreBLEU's own default


SMALL = 500  # lines: fewer are scored before a second process has started
TER_LINES = 500  # in one task of a worker: TER takes as long as all the rest together


Scored = tuple[list[float], str]  # a percentage for each line, and the signature
LineScores = dict[str, Scored]  # by metric


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


@dataclass(frozen=True)
class Texts:
    """A set: equally many lines of each, one at least. `unseen` tells of each whether its source is missing from the training text."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    unseen: list[bool]


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
    rng = np.random.default_rng(int(BOOTSTRAP_SEED))
    drawn = np.sort([_rate(counts[rng.choice(len(counts), size=len(counts))]) for _ in range(BOOTSTRAP_SAMPLES)])
    outside = BOOTSTRAP_SAMPLES // 40  # 2.5 % at either end
    metric = TER()
    metric.sentence_score("", [""])  # after which it knows its signature
    metric.n_bootstrap, metric.seed = BOOTSTRAP_SAMPLES, BOOTSTRAP_SEED
    confidence = float(drawn[-1 - outside] - drawn[outside]) / 2
    return Score(round(_rate(counts), 2), round(confidence, 2), str(metric.get_signature()))


def sentence_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """BLEU of each line alone, of effective order, so that short lines do not all score 0; and the signature."""
    return _line_scores(BLEU(effective_order=True), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """chrF2 of each line alone; and the signature."""
    return _line_scores(CHRF(), hypotheses, references)


def evaluate(sets: dict[str, Texts], language: str) -> tuple[dict[str, dict[str, Any]], dict[str, LineScores]]:
    """Everything that is said of each set, whose target language is `language`: scores, lengths, what looks wrong; and its lines' scores.

    Without unseen lines there is no `bleu_unseen` (None). What takes long is spread over the cores.
    """
    tasks: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for name, texts in sets.items():
        pair = texts.hypotheses, texts.references
        for start in range(0, len(texts.sources), TER_LINES):
            chunk = (side[start : start + TER_LINES] for side in pair)
            tasks[name, "edits", start] = partial(edits, *chunk)
        unseen = [list(compress(side, texts.unseen)) for side in pair]
        whole: dict[str, Callable[[], Any]] = {
            "chrf++": partial(chrf, *pair, word_order=2),
            "chrf": partial(chrf, *pair),
            "lines_chrf": partial(sentence_chrf, *pair),
            "moses": partial(moses_bleu, *pair, language),
            "bleu": partial(bleu, *pair),
            "bleu_unseen": partial(bleu, unseen[0], unseen[1]) if any(texts.unseen) else _nothing,
            "bleu_uncased": partial(bleu, *pair, lowercase=True),
            "bleu_intl": partial(bleu, *pair, tokenize="intl"),
            "lines_bleu": partial(sentence_bleu, *pair),
        }
        tasks |= {(name, metric, 0): task for metric, task in whole.items()}
    order = sorted(tasks, key=lambda key: key[1] != "edits")
    if sum(len(texts.sources) for texts in sets.values()) < SMALL:
        computed = [tasks[key]() for key in order]
    else:
        with Progress("score", len(order), "steps") as progress:
            computed = spread([tasks[key] for key in order], progress.advance)
    found = dict(zip(order, computed, strict=True))
    results, lines = {}, {}
    for name, texts in sets.items():
        counted = [counts for key, chunk in found.items() if key[:2] == (name, "edits") for counts in chunk]
        single = {metric: found[name, metric, 0] for metric in ("bleu", "bleu_unseen", "bleu_uncased", "bleu_intl")}
        scores = {
            **single,
            **found[name, "moses", 0],
            **{metric: found[name, metric, 0] for metric in ("chrf", "chrf++")},
            "ter": ter(counted),
        }
        results[name] = {
            "lines": len(texts.sources),
            "unseen_lines": sum(texts.unseen),
            **{metric: score and asdict(score) for metric, score in scores.items()},
            "length_ratio": round(scores["bleu"].hypothesis_length / max(1, scores["bleu"].reference_length), 4),
            **_looks(texts),
        }
        rates = [round(100 * count / words, 2) if words else 100.0 * bool(count) for count, words in counted]
        lines[name] = {
            "chrf": found[name, "lines_chrf", 0],
            "bleu": found[name, "lines_bleu", 0],
            "ter": (rates, scores["ter"].signature),
        }
    return results, lines


def standing_in(training: Iterable[str], wanted: set[str]) -> set[str]:
    """Those of the `wanted` lines (joined ones) that stand in the `training` text, which is streamed and not held."""
    return {joined for line in training if (joined := join_whitespace(line)) in wanted}


def _looks(texts: Texts) -> dict[str, Any]:
    """Lengths of the sides of a set, and what is wrong with its translations."""
    lines = len(texts.sources)
    sides = {"source": texts.sources, "reference": texts.references, "hypothesis": texts.hypotheses}
    same = sum(hypothesis == source and not is_blank(source) for hypothesis, source in zip(texts.hypotheses, texts.sources, strict=True))
    sources = [set(line.split()) for line in texts.sources]
    words = {name: sum(len(line.split()) for line in side) for name, side in sides.items()}
    copied = {
        name: sum(word in source for line, source in zip(sides[name], sources, strict=True) for word in line.split())
        for name in ("reference", "hypothesis")
    }
    return {
        "words": words,
        "blank_lines": {name: sum(map(is_blank, side)) for name, side in sides.items()},
        "share_equal_to_source": round(same / lines, 4),
        # of the words; the references tell how much of that is right, as below
        "share_copied": {name: round(count / max(1, words[name]), 4) for name, count in copied.items()},
        # one to four words three times in a row
        "share_repeating": {name: round(sum(map(repeats, side)) / lines, 4) for name, side in sides.items()},
    }


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


def _nothing() -> None:
    return None


def _rate(counts: Any) -> float:
    """TER in percent of the `edits` of some lines, [lines, 2]; without any word of reference each is wrong."""
    count, words = counts.sum(axis=0)
    return float(100 * count / words) if words else 100.0 * bool(count)


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
