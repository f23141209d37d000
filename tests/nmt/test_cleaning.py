from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nmt.cleaning import RULES, Cleaner, CleaningConfig, Scripts, in_scripts, join_whitespace, normalized
from nmt.config import parse
from nmt.errors import UserError
from nmt.languages import Languages

STRICT: dict[str, Any] = {
    "join_whitespace": True,
    "max_words": 4,
    "max_characters": 20,
    "max_ratio": 2.0,
    "drop_control": True,
    "drop_letterless": True,
    "scripts": None,
    "language": None,
    "drop_identical": True,
    "drop_held_out": True,
    "drop_held_out_normalized": False,
    "drop_duplicates": True,
    "drop_duplicate_sources": False,
}


def cleaner(held_out: tuple[str, ...] = (), **changes: Any) -> Cleaner:
    return Cleaner(parse(CleaningConfig, STRICT | changes, "c.cleaning"), held_out, Languages(src="en", tgt="de"))


def rule(tested: Cleaner, src: str, tgt: str) -> str | None:
    return tested.rule(tested.prepare(src), tested.prepare(tgt))


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("a", "b", None),
        ("", "b", "blank"),
        ("a", " \u00a0\u200b\ufeff", "blank"),
        ("a b c d", "a b", None),
        ("a b c d e", "a b c", "too_long"),
        ("a b", "a b c d e", "too_long"),
        ("x" * 20, "y", None),
        ("x" * 21, "y", "too_long"),
        ("y", "x" * 65_536, "too_long"),
        ("a b c", "a", "ratio"),
        ("a", "a b c", "ratio"),
        ("same", "same", "identical"),
        ("same ", "\tsame", "identical"),
        ("Held  out", "x y", "held_out"),
        ("held out", "x y", None),
    ],
)
def test_each_rule_at_its_border(src: str, tgt: str, expected: str | None) -> None:
    assert rule(cleaner(("Held\u00a0out ",)), src, tgt) == expected


def test_the_first_rule_that_applies_is_the_one_named() -> None:
    tested = cleaner(("held",))
    long = " ".join("abcde")
    for src, tgt, expected in [
        ("", long, "blank"),
        (long, "x", "too_long"),
        ("held", "x y z", "ratio"),
        ("held", "held", "identical"),
        ("held", "x", "held_out"),
    ]:
        assert rule(tested, src, tgt) == rule(tested, src, tgt) == expected


@pytest.mark.parametrize(
    ("switch", "src", "tgt"),
    [
        ("drop_control", "x\x00y", "x"),
        ("drop_letterless", "12:30", "x"),
        ("drop_identical", "x", "x"),
        ("drop_held_out", "held", "x"),
        ("drop_held_out_normalized", "Held!", "x"),
    ],
)
def test_a_rule_that_is_switched_off_drops_nothing(switch: str, src: str, tgt: str) -> None:
    for on in (True, False):
        assert rule(cleaner(("held",), **{switch: on}), src, tgt) == (switch.removeprefix("drop_") if on else None)


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\x80", "\x9f", "\ufffd"])
def test_control_characters_and_the_sign_of_broken_text_are_found_on_either_side(character: str) -> None:
    assert rule(cleaner(), f"a{character}b", "c") == rule(cleaner(), "c", f"a{character}b") == "control"


@pytest.mark.parametrize("character", ["\t", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u200b", "\u200d", "\u0301", "\U0001f600"])
def test_white_space_joiners_marks_and_emoji_are_no_control_characters(character: str) -> None:
    assert rule(cleaner(join_whitespace=False), f"a{character}b", "c") is None


@pytest.mark.parametrize(("src", "tgt"), [("12.30 %", "12,30 %"), ("…", "..."), ("_", "word"), ("word", "(1)")])
def test_a_side_without_a_letter_is_letterless(src: str, tgt: str) -> None:
    assert rule(cleaner(), src, tgt) == "letterless"


@pytest.mark.parametrize("text", ["a", "4 ü", "д", "中", "ア", "½a"])
def test_a_letter_of_any_script_is_one(text: str) -> None:
    assert rule(cleaner(), text, "x") is None


@pytest.mark.parametrize(
    ("text", "scripts", "expected"),
    [
        ("Hello, world 12", ["LATIN"], True),
        ("Привет, мир", ["LATIN"], False),
        ("Привет, мир", ["CYRILLIC"], True),
        ("Hi мир", ["LATIN"], False),  # two letters of five
        ("Hi, my мир", ["LATIN"], True),  # four of seven
        ("中文 かな カナ", ["CJK", "HIRAGANA", "KATAKANA"], True),
        ("ＡＢＣ ẞöß", ["LATIN"], True),
        ("1, 2, 3 …", ["LATIN"], True),  # no letters, none of them wrong
    ],
)
def test_the_share_of_letters_in_the_scripts_decides(text: str, scripts: list[str], expected: bool) -> None:
    assert in_scripts(text, scripts, 0.5) == expected
    both = {"src": scripts, "tgt": ["LATIN"], "min_share": 0.5}
    tested = cleaner(scripts=both, drop_letterless=False, max_words=9, max_ratio=9.0)
    assert rule(tested, text, "x") == (None if expected else "script")
    both = {"src": ["LATIN"], "tgt": scripts, "min_share": 0.5}
    tested = cleaner(scripts=both, drop_letterless=False, max_words=9, max_ratio=9.0)
    assert rule(tested, "x", text) == (None if expected else "script")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("Held  out!", "held out"),
        ("“Held” out …", "HELD OUT"),
        ("Ｈｅｌｄ out", "held-out"),
        ("STRASSE", "Straße"),
        ("e\u0301te\u0301", "Été"),
    ],
)
def test_lines_that_differ_in_case_width_and_punctuation_are_the_same_once_normalized(line: str, other: str) -> None:
    assert normalized(line) == normalized(other)
    tested = cleaner((other,), drop_held_out_normalized=True)
    assert rule(tested, line, "x y") == "held_out_normalized" and rule(tested, other, "x y") == "held_out"


@pytest.mark.parametrize(("line", "other"), [("held out", "held"), ("1.5", "1.6"), ("?", "!"), ("schon", "schön")])
def test_lines_that_say_something_else_are_not(line: str, other: str) -> None:
    assert normalized(line) != normalized(other)


@pytest.mark.parametrize("text", ["\u304b\u3099", "\u304c", "e\u0301", "\u00e9", "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c"])
def test_combining_characters_and_text_without_spaces_stay_as_they_are(text: str) -> None:
    tested = cleaner()
    assert tested.prepare(text) == text and rule(tested, "x", text) is None


def test_without_joining_lines_stay_but_held_out_sources_are_still_found() -> None:
    tested = cleaner(("a b",), join_whitespace=False)
    assert tested.prepare(" a\u00a0 b") == " a\u00a0 b"
    assert rule(tested, "a  b", "x y") == "held_out"
    assert tested.leaks("a  b") and not tested.leaks("ab")


def test_white_space_of_any_kind_is_joined() -> None:
    assert join_whitespace("\u3000a\t\u00a0b\u2028\x85c\r\v") == "a b c"
    assert join_whitespace("a\u200bb") == "a\u200bb"


@given(st.lists(st.tuples(st.text("ab \u00a0\u200b", max_size=12), st.text("ab ", max_size=12))))
def test_every_pair_is_kept_or_dropped_by_a_rule_and_cleaning_again_drops_nothing(pairs: list[tuple[str, str]]) -> None:
    tested, again = cleaner(("a", "b")), cleaner(("a", "b"))
    rules = [rule(tested, *pair) for pair in pairs]
    assert set(rules) <= {None, *RULES}
    kept = [(tested.prepare(src), tested.prepare(tgt)) for (src, tgt), found in zip(pairs, rules, strict=True) if found is None]
    assert all(again.rule(again.prepare(src), again.prepare(tgt)) is None and again.prepare(src) == src for src, tgt in kept)


@pytest.mark.parametrize("wrong", [{"max_words": 0}, {"max_ratio": 0.5}, {"max_ratio": float("nan")}, {"drop_identical": "no"}])
def test_impossible_limits_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"c.cleaning.{min(wrong)}"):
        cleaner(**wrong)


@pytest.mark.parametrize("name", ["KLINGON", "latin", "LAT", ""])
def test_a_script_that_unicode_does_not_know_is_refused(name: str) -> None:
    assert Scripts(src=["LATIN", "CJK"], tgt=["CYRILLIC"], min_share=0.5)
    with pytest.raises(ValidationError, match="begins no name of a letter in Unicode"):
        Scripts(src=[name], tgt=["LATIN"], min_share=0.5)


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("The files could not be copied to the folder.", "Die Dateien konnten nicht in den Ordner kopiert werden.", None),
        ("The files could not be copied to the folder.", "The files could not be copied to this other folder.", "language"),
        ("Die Dateien konnten nicht kopiert werden, schade.", "Die Dateien konnten nicht in den Ordner kopiert werden.", "language"),
        ("The files could not be copied to the folder.", "Les fichiers n'ont pas pu être copiés dans le dossier.", "language"),
        ("Les fichiers", "Les fichiers", "identical"),  # too short to tell
    ],
)
def test_a_side_in_another_language_is_dropped(src: str, tgt: str, expected: str | None) -> None:
    tested = cleaner(language={"min_characters": 30, "min_confidence": 0.9}, max_words=50, max_characters=500, max_ratio=9.0)
    assert rule(tested, src, tgt) == expected
    assert expected == "identical" or rule(cleaner(max_words=50, max_characters=500, max_ratio=9.0), src, tgt) is None


def test_a_language_that_cannot_be_told_is_named() -> None:
    config = parse(CleaningConfig, STRICT | {"language": {"min_characters": 30, "min_confidence": 0.9}}, "c.cleaning")
    Cleaner(config, (), Languages(src="en-GB", tgt="pt_BR"))
    with pytest.raises(UserError, match=r"cannot tell tlh: .*; make it null"):
        Cleaner(config, (), Languages(src="en", tgt="tlh"))
