"""Text of another language is told from text of another kind, whatever the languages are."""

import random

import pytest

from nmt.errors import UserError
from nmt.foreign import Profiles, trigrams

WORDS = {
    "en": "the house is old and through window which there would their should between garden weather little water bring".split(),
    "de": "das Haus ist alt und durch Fenster welche dort würde ihr sollte zwischen Garten Wetter klein Wasser bringen".split(),
    "fr": "la maison est vieille et dans fenêtre laquelle serait leur devrait entre jardin temps petite eau apporter cette".split(),
}


def text(language: str, count: int, seed: int = 0) -> list[str]:
    rng = random.Random(f"{language} {seed}")
    return [" ".join(rng.choices(WORDS[language], k=rng.randint(5, 12))) for _ in range(count)]


LANGUAGES = Profiles(text("en", 1000), text("de", 1000))
GOOD = text("de", 100, 1)


def test_the_target_language_is_let_pass() -> None:
    assert LANGUAGES.judge(text("de", 100, 2), GOOD) == []


def test_hypotheses_in_the_sources_language_are_named_with_share_and_first_line() -> None:
    (warning,) = LANGUAGES.judge(GOOD[:60] + text("en", 40), GOOD)
    assert warning.startswith("40% of the longer hypotheses") and "line 61" in warning


def test_references_in_the_sources_language_are_refused() -> None:
    with pytest.raises(UserError, match="100% of the longer references"):
        LANGUAGES.judge(GOOD, text("en", 100))


def test_what_the_references_copy_too_is_right_in_hypotheses() -> None:
    names = text("en", 4) + GOOD[4:]
    assert LANGUAGES.judge(names, names) == []


@pytest.mark.parametrize("side", ["hypotheses", "references"])
def test_a_third_language_is_named(side: str) -> None:
    other = text("fr", 100)
    found = LANGUAGES.judge(*((other, GOOD) if side == "hypotheses" else (GOOD, other)))
    assert len(found) == 1 and side in found[0]


def test_a_few_names_are_no_other_language() -> None:
    assert LANGUAGES.judge(GOOD[:17] + text("en", 3), GOOD[:20]) == []


def test_short_lines_and_little_training_text_say_nothing() -> None:
    assert LANGUAGES.judge(["the house"] * 50, ["das Haus"] * 50) == []
    assert Profiles(text("en", 100), text("de", 100)).judge(text("en", 50), GOOD) == []
    assert Profiles([], []).judge([], []) == []


def test_trigrams_are_those_of_the_line_between_spaces() -> None:
    assert trigrams(" Ab  c") == [" ab", "ab ", "b c", " c "]
    assert trigrams("") == []
