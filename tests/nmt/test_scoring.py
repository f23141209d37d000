"""Scores equal what arithmetic gives for small cases, and say how they were computed."""

import itertools
import math
import os
from collections.abc import Iterator

import pytest

from nmt import scoring

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


@pytest.mark.parametrize(("hypothesis", "edits"), [("a b c d", 0), ("A b c d", 0), ("a b x d", 1), ("a b c", 1), ("c d a b", 1)])
def test_ter_counts_edits_and_shifts_per_word_of_the_reference(hypothesis: str, edits: int) -> None:
    assert scoring.ter([hypothesis], ["a b c d"]).score == 25 * edits


def test_lines_are_scored_alone_with_their_own_signature() -> None:
    hypotheses, references = ["a b", "", "x"], ["a b", "a", "y"]
    for function in (scoring.sentence_bleu, scoring.sentence_chrf):
        scores, signature = function(hypotheses, references)
        assert scores == [100, 0, 0]
        assert "|eff:yes|" in signature


def test_sources_are_compared_after_joining_white_space() -> None:
    assert scoring.standing_in(["turn  on", "other", " turn\u00a0off\u2028"], {"turn on", "turn off", "new"}) == {"turn on", "turn off"}


def test_the_training_text_is_streamed() -> None:
    alive = []

    class Line(str):
        def __init__(self, text: str) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def training() -> Iterator[str]:
        for number in itertools.islice(itertools.count(), 1000):
            yield Line(f"line {number}")
            assert len(alive) <= 2

    assert scoring.standing_in(training(), {"line 3", "line 999", "line 1000"}) == {"line 3", "line 999"}


def test_a_set_is_told_with_what_is_wrong_in_it() -> None:
    sources = ["one two", "", "three", "four"]
    references = ["eins zwei", "", "drei drei drei", "vier"]
    hypotheses = ["one two", "", "drei drei drei", ""]
    found = scoring.evaluate(sources, references, hypotheses, [True, True, False, False])
    assert found["lines"] == 4 and found["unseen_lines"] == 2
    assert found["words"] == {"source": 4, "reference": 6, "hypothesis": 5}
    assert found["blank_lines"] == {"source": 1, "reference": 1, "hypothesis": 2}
    assert found["share_equal_to_source"] == 0.25  # the blank line is right to be equal
    assert found["share_repeating"] == {"source": 0, "reference": 0.25, "hypothesis": 0.25}
    assert found["bleu_unseen"]["reference_length"] == 2


@pytest.mark.parametrize("unseen", [True, False])
def test_bleu_of_unseen_lines_is_that_of_all_or_none(unseen: bool) -> None:
    lines = ["a b c d e", "f g h i j"]
    found = scoring.evaluate(lines, lines, ["a b c d e", "f g h x j"], [unseen, unseen])
    assert found["bleu_unseen"] == (found["bleu"] if unseen else None)
