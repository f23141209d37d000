"""Scores equal what arithmetic gives for small cases, and say how they were computed."""

import math
import os
import random

import pytest
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt import scoring
from nmt.moses import moses_name

REFERENCE = ["the cat sat on a mat"]


def test_bleu_is_the_geometric_mean_of_the_four_precisions() -> None:
    found = scoring.bleu(["the cat sat on the mat"], REFERENCE)
    assert found.precisions == [83.33, 60.0, 50.0, 33.33]  # 5/6, 3/5, 2/4, 1/3
    assert found.brevity_penalty == 1
    assert found.score == round(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, 2)


def test_bleu_punishes_what_is_too_short() -> None:
    found = scoring.bleu(["the cat sat on"], REFERENCE)
    assert (found.hypothesis_length, found.reference_length) == (4, 6)
    assert found.score == round(100 * math.exp(1 - 6 / 4), 2)


def test_bleu_sums_counts_over_the_set_and_does_not_average_lines() -> None:
    found = scoring.bleu(["the cat sat on the mat", "a b c d"], [*REFERENCE, "a b c d"])
    assert found.precisions == [90.0, 75.0, round(400 / 6, 2), 50.0]  # (5+4)/(6+4), (3+3)/(5+3), (2+2)/(4+2), (1+1)/(3+1)


def test_bleu_is_cased_and_of_13a_unless_asked() -> None:
    hypotheses, references = ["The Dog “barks” at night"], ["the dog “ barks ” at night"]
    assert scoring.bleu(hypotheses, references).score < scoring.bleu(hypotheses, references, lowercase=True).score < 100
    assert scoring.bleu(hypotheses, references, lowercase=True, tokenize="intl").score == 100  # it splits off typographic quotes
    assert "|case:mixed|eff:no|tok:13a|smooth:exp|" in scoring.bleu(hypotheses, references).signature
    assert "|case:lc|eff:no|tok:intl|" in scoring.bleu(hypotheses, references, lowercase=True, tokenize="intl").signature


def test_confidence_and_signature_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses = [f"a b c d e {i % 3} f g {i % 5}" for i in range(40)]
    references = [f"a b c d e {i % 2} f g {i % 7}" for i in range(40)]
    found = scoring.bleu(hypotheses, references)
    assert found.confidence > 0
    for seed in ("7", "none"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        assert scoring.bleu(hypotheses, references) == found
        assert os.environ["SACREBLEU_SEED"] == seed
    assert "|bs:1000|seed:12345|" in found.signature


def test_confidence_is_nothing_where_all_lines_are_alike() -> None:
    assert scoring.bleu(["the cat sat on the mat"] * 9, REFERENCE * 9).confidence == 0


def test_chrf_averages_the_orders_that_exist() -> None:
    found = scoring.chrf(["ab"], ["ac"])  # characters: 1 of 2 on both sides; pairs: 0 of 1; longer ones: there are none
    assert found.score == 25
    assert "|nc:6|nw:0|" in found.signature
    assert "|nc:6|nw:2|" in scoring.chrf(["ab"], ["ac"], word_order=2).signature


def test_chrf_its_interval_and_its_signature_are_those_of_sacrebleu() -> None:
    rng = random.Random(4)
    references = [" ".join(rng.choices("abcdef", k=rng.randint(3, 9))) for _ in range(60)]
    hypotheses = [" ".join(rng.choices("abcdef", k=rng.randint(3, 9))) for _ in references]
    metric = CHRF()
    expected = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    found = scoring.chrf(hypotheses, references)
    assert (found.score, found.confidence) == (round(expected.score, 2), pytest.approx(expected._ci, abs=0.006))
    assert found.signature == str(metric.get_signature())
    assert scoring.chrf(["xyz", "abc"], ["abc", "abc"]).confidence > 0  # some samples score 0


@pytest.mark.parametrize(("hypothesis", "edits"), [("a b c d", 0), ("A b c d", 0), ("a b x d", 1), ("a b c", 1), ("c d a b", 1)])
def test_ter_counts_edits_and_shifts_per_word_of_the_reference(hypothesis: str, edits: int) -> None:
    assert scoring.edits([hypothesis], ["a b c d"]) == [(edits, 4)]
    assert scoring.ter([(edits, 4)]).score == 25 * edits


@pytest.mark.parametrize(("counts", "score"), [([(0, 0)], 0), ([(2, 0)], 100), ([(0, 4), (1, 0)], 25)])
def test_ter_without_words_of_reference_is_that_of_sacrebleu(counts: list[tuple[float, float]], score: float) -> None:
    assert scoring.ter(counts).score == score


def test_ter_its_interval_and_its_signature_are_those_of_sacrebleu() -> None:
    rng = random.Random(4)
    references = [" ".join(rng.choices("abcdef", k=rng.randint(0, 9))) for _ in range(60)]
    hypotheses = [" ".join(rng.choices("abcdef", k=rng.randint(0, 9))) for _ in references]
    metric = TER()
    expected = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    found = scoring.ter(scoring.edits(hypotheses, references))
    assert (found.score, found.signature) == (round(expected.score, 2), str(metric.get_signature()))
    assert found.confidence == pytest.approx(expected._ci, abs=0.006)  # it sums in 32 bits


def test_a_mean_has_the_interval_of_a_mean() -> None:
    rng = random.Random(4)
    scores = [rng.gauss(80, 10) for _ in range(2000)]
    found = scoring.mean((scores, "model:m"))
    assert found.score == round(sum(scores) / 2000, 2)
    assert found.confidence == pytest.approx(1.96 * 10 / math.sqrt(2000), rel=0.1)  # the normal distribution's
    assert found.signature == "bs:1000|seed:12345|model:m"
    assert scoring.mean(([1.5, 2.5], "")).score == 2 and scoring.mean(([7.0] * 9, "")).confidence == 0


def test_the_bleu_of_papers_is_that_of_their_tokens() -> None:
    hypotheses, references = ["Ein 28-jähriger Koch sagte „ja“."], ['Ein 28-jährige Koch sagte "ja".']
    found = scoring.moses_bleu(hypotheses, references, "de")
    # Ein 28-jähriger Koch sagte „ ja “ .    against   Ein 28-jährige Koch sagte " ja " .        no four in a row agree
    assert found["bleu_moses"].precisions == [62.5, 14.29, 0.0, 0.0] and found["bleu_moses"].score == 0  # 5/8, 1/7; no smoothing
    assert found["bleu_moses_split"].hypothesis_length == 10  # Ein 28 ##AT##-##AT## jähriger …
    # … Koch sagte " ja " .  agrees now, which is 6 tokens, and Ein 28 ##AT##-##AT##, which is 3
    assert found["bleu_moses_split_quotes"].precisions == [90.0, 77.78, 62.5, 42.86]  # 9/10, 7/9, 5/8, 3/7
    for name, tokens in (("bleu_moses", ""), ("bleu_moses_split", "+split"), ("bleu_moses_split_quotes", "+split+quotes")):
        assert f"|case:mixed|eff:no|tok:{moses_name('de')}{tokens}|smooth:none|" in found[name].signature


def test_lines_are_scored_alone_with_their_own_signature() -> None:
    hypotheses, references = ["a b", "", "x"], ["a b", "a", "y"]
    for function in (scoring.sentence_bleu, scoring.sentence_chrf):
        scores, signature = function(hypotheses, references)
        assert scores == [100, 0, 0]
        assert "|eff:yes|" in signature
