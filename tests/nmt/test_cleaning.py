from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.cleaning import RULES, Cleaner, CleaningConfig, Ledger, join_whitespace
from nmt.config import parse
from nmt.errors import UserError

STRICT: dict[str, Any] = {
    "join_whitespace": True,
    "max_words": 4,
    "max_characters": 20,
    "max_ratio": 2.0,
    "drop_identical": True,
    "drop_duplicates": True,
    "drop_held_out": True,
}


def cleaner(held_out: tuple[str, ...] = (), **changes: Any) -> Cleaner:
    return Cleaner(parse(CleaningConfig, STRICT | changes, "c.cleaning"), held_out)


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


def test_a_pair_is_a_duplicate_only_of_one_that_was_kept_and_only_if_both_sides_are_equal() -> None:
    tested = cleaner()
    found = [rule(tested, src, tgt) for src, tgt in [("a", "b"), ("a", "c"), ("c", "b"), (" a", "b"), ("a b", "c"), ("a", "b c")]]
    assert found == [None, None, None, "duplicate", None, None]


@pytest.mark.parametrize(
    ("switch", "src", "tgt"), [("drop_identical", "x", "x"), ("drop_held_out", "held", "x"), ("drop_duplicates", "twice", "x")]
)
def test_a_rule_that_is_switched_off_drops_nothing(switch: str, src: str, tgt: str) -> None:
    for on in (True, False):
        tested = cleaner(("held",), **{switch: on})
        if switch == "drop_duplicates":
            assert rule(tested, src, tgt) is None
        assert rule(tested, src, tgt) == (switch.removeprefix("drop_").removesuffix("s") if on else None)


def test_without_joining_lines_stay_but_held_out_sources_are_still_found() -> None:
    tested = cleaner(("a b",), join_whitespace=False)
    assert tested.prepare(" a\u00a0 b") == " a\u00a0 b"
    assert rule(tested, "a  b", "x y") == "held_out"
    assert [rule(tested, "c  d", "x y"), rule(tested, "c d", "x y"), rule(tested, "c d", "x y")] == [None, None, "duplicate"]


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


def write_ledger(path: Path, rows: list[tuple[str, int, str]]) -> bytes:
    with Ledger(path) as ledger:
        for row in rows:
            ledger.drop(*row)
    return path.read_bytes()


@pytest.mark.parametrize("count", [0, 1, 5, 6, 11])
def test_a_ledger_holds_its_rows_in_order_and_repeats_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(Ledger, "ROWS", 5)
    rows = [(f"ä{n % 2}", n + 1, RULES[n % len(RULES)]) for n in range(count)]
    assert write_ledger(tmp_path / "a", rows) == write_ledger(tmp_path / "b", rows)
    table = pd.read_parquet(tmp_path / "a")
    assert list(table.columns) == ["file", "line", "rule"] and list(table.itertuples(index=False, name=None)) == rows
