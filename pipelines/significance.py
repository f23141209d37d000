"""Whether a difference of scores is more than chance: over the choice of sentences, and over the seeds of the trainings.

Two trainings are compared with sacreBLEU's own paired tests. Several seeds a side are compared with a t test that knows both sources of
variance, of which an example by hand: BLEU 26.0, 26.4, 26.2 against 26.9, 26.7, 27.1 differ by 0.70; the seeds' variances are 0.04 and
0.04, over 3 each 0.0267 in all; if the choice of sentences alone moves the difference by a deviation of 0.20, the standard error is
sqrt(0.0267 + 0.0400) = 0.258 and t = 2.71.
"""

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from mpmath import betainc
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from pipelines.telling import Tell, silent

LEVEL = 0.05
SAMPLES = 1000
SEED = "12345"  # sacreBLEU's own default
ENOUGH_SEEDS = 3
LINES = 100  # that are counted between two words of what is done


@dataclass(frozen=True)
class Paired:
    """One system against a baseline on the same lines. Both p are two-sided; the same translations have p = 1."""

    baseline: float
    score: float
    difference: float
    bootstrap_p: float
    randomization_p: float
    signatures: list[str]  # of the two tests

    def decision(self, level: float) -> bool | None:
        """Whether the difference is more than chance, or None where the two tests do not agree."""
        below = self.bootstrap_p < level, self.randomization_p < level
        return below[0] if below[0] == below[1] else None


@dataclass(frozen=True)
class Seeds:
    """Two sides of several trainings each, on the same lines."""

    means: tuple[float, float]
    deviations: tuple[float | None, float | None]  # between the seeds of a side; None of one seed
    counts: tuple[int, int]
    difference: float
    sentence_deviation: float  # of the difference, by resampling the lines with all trainings as they are
    standard_error: float | None  # of the difference, from both sources; None where a side has one seed
    degrees: float | None
    p: float | None

    @property
    def enough(self) -> bool:
        """Whether each side has as many seeds as a deviation takes to mean something."""
        return min(self.counts) >= ENOUGH_SEEDS


class Remembering(Metric):
    """A metric that keeps what it counts of a line, for the other test and for the other system's line where it is the same.

    TER takes milliseconds a line, and sacreBLEU's two tests would count each line of each system twice.
    """

    def remember(self, tell: Tell) -> Self:
        """Begin, with nothing known; `tell` is told how many lines are counted."""
        self.known: dict[tuple[str, str], Any] = {}
        self.tell = tell
        return self

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]] | None) -> Any:
        assert references is not None
        lines = list(zip(hypotheses, references[0], strict=True))
        new = [line for line in dict.fromkeys(lines) if line not in self.known]
        for start in range(0, len(new), LINES):
            self.tell(f"{type(self).__name__}: {start:,} of {len(new):,} lines")
            some = new[start : start + LINES]
            texts, answers = zip(*some, strict=True)
            self.known.update(zip(some, super()._extract_corpus_statistics(texts, [answers]), strict=True))
        return [self.known[line] for line in lines]


class Bleu(Remembering, BLEU):
    """BLEU."""


class Chrf(Remembering, CHRF):
    """chrF."""


class Ter(Remembering, TER):
    """TER."""


def paired(baseline: Sequence[str], system: Sequence[str], references: Sequence[str], tell: Tell = silent) -> dict[str, Paired]:
    """Paired bootstrap (Koehn 2004) and randomization (Riezler and Maxwell 2005) of BLEU, chrF and TER, as `sacrebleu` has them.

    sacreBLEU gives the same translations p = 1/1001, because no sample differs by more than they do, nor by less. They have p = 1 here,
    and are not tested.
    """
    same = [" ".join(line.split()) for line in baseline] == [" ".join(line.split()) for line in system]
    metrics = {"bleu": Bleu(force=True), "chrf": Chrf(), "ter": Ter()}
    return {name: _paired(metric.remember(tell), baseline, system, references, same) for name, metric in metrics.items()}


def _paired(metric: Remembering, baseline: Sequence[str], system: Sequence[str], references: Sequence[str], same: bool) -> Paired:
    """The tests of one metric."""
    found: dict[str, tuple[list[Result], str]] = {}
    with _fixed_seed():
        for test in ("bs", "ar"):
            metric.tell(f"{type(metric).__name__}: {'bootstrap' if test == 'bs' else 'randomization'}")
            systems = [("baseline", baseline), ("system", system)]
            # Of what is the same a sample says nothing, and the signature is that of the test which is not made.
            signatures, scores = PairedTest(systems, {"": metric}, [references], test_type=test, n_samples=1 if same else 0)()
            ((title, signature),) = signatures.items()
            if same:
                signature.update(test, PairedTest._DEFAULT_SAMPLES[test])
            found[test] = [result for result in scores[title] if isinstance(result, Result)], str(signature)
    (first, second), bootstrap = found["bs"]
    (_, shuffled), randomization = found["ar"]
    return Paired(
        baseline=round(first.score, 2),
        score=round(second.score, 2),
        difference=round(second.score - first.score, 2),
        bootstrap_p=1.0 if same else _p(second),
        randomization_p=1.0 if same else _p(shuffled),
        signatures=[bootstrap, randomization],
    )


def compare_seeds(baselines: Sequence[Sequence[str]], systems: Sequence[Sequence[str]], references: Sequence[str]) -> Seeds:
    """BLEU of several trainings a side: means, deviations, and a t test of the difference (Welch's, with the sentences as a third part).

    The squared standard error is s_a^2 / n_a + s_b^2 / n_b + v, with v the variance of the difference of means over resampled lines;
    the degrees of freedom are Satterthwaite's.
    """
    counts = [[_counts(side, references) for side in sides] for sides in (baselines, systems)]
    scores = [[_bleu(one.sum(axis=0)) for one in side] for side in counts]
    means = [statistics.fmean(side) for side in scores]
    rng = np.random.default_rng(int(SEED))
    drawn = []
    for _ in range(SAMPLES):
        weights = np.bincount(rng.integers(len(references), size=len(references)), minlength=len(references))
        first, second = (statistics.fmean(_bleu(weights @ one) for one in side) for side in counts)
        drawn.append(second - first)
    sentences = statistics.variance(drawn)
    return combine(scores[0], scores[1], means[1] - means[0], sentences, len(references))


def combine(first: Sequence[float], second: Sequence[float], difference: float, sentences: float, lines: int) -> Seeds:
    """The t test from the scores of the seeds of two sides and the variance of their difference over `lines` resampled lines."""
    deviations = [statistics.stdev(side) if len(side) > 1 else None for side in (first, second)]
    error = degrees = p = None
    if deviations[0] is not None and deviations[1] is not None:
        parts = [(deviations[0] ** 2 / len(first), len(first) - 1), (deviations[1] ** 2 / len(second), len(second) - 1)]
        parts.append((sentences, max(1, lines - 1)))
        variance = sum(part for part, _ in parts)
        error = math.sqrt(variance)
        if variance > 0:
            degrees = variance**2 / sum(part**2 / freedom for part, freedom in parts)
            p = student_p(difference / error, degrees)
        else:
            p = 1.0 if difference == 0 else 0.0
    return Seeds(
        (round(statistics.fmean(first), 2), round(statistics.fmean(second), 2)),
        (deviations[0], deviations[1]),
        (len(first), len(second)),
        round(difference, 2),
        math.sqrt(sentences),
        error,
        degrees,
        p,
    )


def student_p(t: float, degrees: float) -> float:
    """The two-sided p of Student's t with so many degrees of freedom."""
    return float(betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU (13a, cased) of some lines, of effective order: where no line has four tokens, of the orders that there are."""
    return round(float(BLEU(force=True, effective_order=True).corpus_score(hypotheses, [references]).score), 2)


def _counts(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Of each line what BLEU sums: matches and totals of 1 to 4 tokens, tokens of hypothesis and reference; [lines, 10]."""
    metric = BLEU(effective_order=True)  # which changes no count
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found = metric.sentence_score(hypothesis, [reference])
        rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
    return np.asarray(rows, dtype=np.int64)


def _bleu(counts: NDArray[np.int64]) -> float:
    """BLEU of summed counts, [10]."""
    numbers = [int(count) for count in counts]
    return float(BLEU.compute_bleu(numbers[:4], numbers[4:8], numbers[8], numbers[9], smooth_method="exp").score)


def _p(result: Result) -> float:
    assert result.p_value is not None
    return float(result.p_value)


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone; a user's own must not change a verdict."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = SEED
    try:
        yield
    finally:
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before
