"""A shift is found with its place and direction; texts that are only badly translated, alike or short are let pass."""

import random

import pytest

from nmt.errors import UserError
from nmt.shifted import find_shift, judge

WORDS = (
    "der Ofen die Tür das Licht ist an aus offen zu kalt warm heute morgen nie immer Sensor Gerät Batterie Fenster Heizung Klima".split()
)


def sentences(seed: int, count: int = 200) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + f" {rng.randint(10, 99)}." for _ in range(count)]


def noisy(lines: list[str], seed: int = 5) -> list[str]:
    """The same with every third word another: translations of a middling model."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < 0.33 else word for word in line.split()) for line in lines]


REFERENCES = sentences(1)
HYPOTHESES = noisy(REFERENCES)


def test_texts_that_belong_together_are_let_pass() -> None:
    assert find_shift(HYPOTHESES, REFERENCES) is None
    assert find_shift(REFERENCES, REFERENCES) is None


@pytest.mark.parametrize("by", [-3, -1, 1, 2])
def test_a_shift_of_all_lines_is_found(by: int) -> None:
    moved = REFERENCES[-by:] + REFERENCES[:-by]  # line i stands at i + by
    found = find_shift(HYPOTHESES, moved)
    assert found is not None and found.by == by
    assert found.last - found.first >= 190


def test_a_shift_from_some_line_on_is_found_where_it_begins() -> None:
    found = find_shift(HYPOTHESES, [*REFERENCES[:120], "Eine Zeile zu viel.", *REFERENCES[120:-1]])
    assert found is not None
    assert abs(found.first - 121) <= 2 and found.by == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_translation_is_no_shift(seed: int) -> None:
    assert find_shift(sentences(seed + 10), REFERENCES) is None
    assert find_shift(["das ist so"] * 200, REFERENCES) is None
    assert find_shift([""] * 200, REFERENCES) is None


def test_a_few_lines_prove_nothing() -> None:
    assert find_shift(REFERENCES[:5], REFERENCES[1:6]) is None
    assert find_shift([], []) is None


def test_many_shifted_lines_are_refused_and_few_are_named() -> None:
    sources = ["?"] * 200
    assert judge(sources, REFERENCES, HYPOTHESES) == []
    with pytest.raises(UserError, match=r"hypotheses and references are shifted .* 1 line back"):
        judge(sources, REFERENCES[1:] + REFERENCES[:1], HYPOTHESES)
    text = sentences(2, 400)
    few = [*text[:100], "zu viel", *text[100:160], *text[161:]]
    (warning,) = judge(["?"] * 400, few, noisy(text))
    assert "1 line further on" in warning


def test_references_that_left_their_sources_are_found_by_names_and_numbers() -> None:
    rng = random.Random(3)
    sources = [f"switch number {rng.randint(1000, 99999)} of {name} is on" for name in rng.choices(["Berlin", "Paris", "Rom"], k=200)]
    references = [line.replace("switch number", "Schalter").replace("is on", "an") for line in sources]
    assert judge(sources, references, ["nichts"] * 200) == []
    with pytest.raises(UserError, match="sources and references are shifted"):
        judge(sources, references[1:] + references[:1], ["nichts"] * 200)
