"""What is said of a set is counted right, by one process or several; the training text is looked through without holding it."""

import itertools
import random
from collections.abc import Iterator

import pytest

from nmt import evaluation


def test_sources_are_compared_after_joining_white_space() -> None:
    assert evaluation.standing_in(["turn  on", "other", " turn\u00a0off\u2028"], {"turn on", "turn off", "new"}) == {"turn on", "turn off"}


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

    assert evaluation.standing_in(training(), {"line 3", "line 999", "line 1000"}) == {"line 3", "line 999"}


def texts(sources: list[str], references: list[str], hypotheses: list[str], unseen: list[bool]) -> evaluation.Texts:
    return evaluation.Texts(sources, references, hypotheses, unseen)


def test_a_set_is_told_with_what_is_wrong_in_it() -> None:
    sources = ["one two", "", "three", "four"]
    references = ["eins zwei", "", "drei drei three", "vier"]
    hypotheses = ["one two", "", "drei drei drei", ""]
    sets, lines = evaluation.evaluate({"test": texts(sources, references, hypotheses, [True, True, False, False])}, "de")
    found = sets["test"]
    assert found["lines"] == 4 and found["unseen_lines"] == 2
    assert found["words"] == {"source": 4, "reference": 6, "hypothesis": 5}
    assert found["length_ratio"] == round(5 / 6, 4)
    assert found["blank_lines"] == {"source": 1, "reference": 1, "hypothesis": 2}
    assert found["share_equal_to_source"] == 0.25  # the blank line is right to be equal
    assert found["share_copied"] == {"reference": round(1 / 6, 4), "hypothesis": 0.4}
    assert found["share_repeating"] == {"source": 0, "reference": 0, "hypothesis": 0.25}
    assert found["bleu_unseen"]["reference_length"] == 2
    assert lines["test"]["ter"][0] == [100, 0, 33.33, 100]


def test_what_comet_found_stands_beside_the_rest_and_changes_nothing_of_it() -> None:
    lines = ["a b c d e", "f g h i j"]
    sets = {name: texts(lines, lines, ["a b c d e", "f g h x j"], [True, False]) for name in ("valid", "test")}
    without, bare = evaluation.evaluate(sets, "de")
    found, scored = evaluation.evaluate(sets, "de", {"valid": ([85.344, 20.0], "model:m"), "test": ([1.0, 2.0], "model:m")})
    comet = {"score": 52.67, "confidence": pytest.approx(32.67, abs=0.01), "signature": "bs:1000|seed:12345|model:m"}  # (85.344 ± 20) / 2
    assert found["valid"].pop("comet") == comet
    assert found["test"].pop("comet")["score"] == 1.5
    assert scored["valid"].pop("comet") == ([85.34, 20.0], "model:m") and scored["test"].pop("comet") == ([1.0, 2.0], "model:m")
    assert (found, scored) == (without, bare)


@pytest.mark.parametrize("unseen", [True, False])
def test_bleu_of_unseen_lines_is_that_of_all_or_none(unseen: bool) -> None:
    lines = ["a b c d e", "f g h i j"]
    found = evaluation.evaluate({"test": texts(lines, lines, ["a b c d e", "f g h x j"], [unseen, unseen])}, "de")[0]["test"]
    assert found["bleu_unseen"] == (found["bleu"] if unseen else None)


@pytest.mark.slow
@pytest.mark.essential
def test_many_lines_are_scored_by_several_processes_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    lines = [" ".join(rng.choices("abcdefgh", k=rng.randint(1, 9))) for _ in range(60)]
    sets = {name: texts(lines, lines, rng.sample(lines, k=60), [True] * 60) for name in ("valid", "test")}
    alone = evaluation.evaluate(sets, "de")
    monkeypatch.setattr(evaluation, "SMALL", 0)
    monkeypatch.setattr(evaluation, "TER_LINES", 25)
    assert evaluation.evaluate(sets, "de") == alone
