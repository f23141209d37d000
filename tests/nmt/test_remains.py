"""Marks of unfinished text are named, and refused when they are everywhere; loops are seen."""

import pytest

from nmt.errors import UserError
from nmt.remains import remains, repeats

CLEAN = ["Das ist ein Satz.", "Ein zweiter, kürzerer.", "R&D ist erlaubt; a@b.de auch."] * 100
MARKED = {
    "@@": "Er ge@@ wann .",
    "▁": "▁Er ▁gewann",
    "&quot;": "Er sagte &quot;ja&quot;",
    "&#39;": "geht&#39;s",
    "⁇": "Er ⁇ es",
    "<unk>": "Er <unk> es",
    "spaces": "Er kam , sah und siegte .",
}


def test_plain_text_is_not_suspected() -> None:
    assert remains(CLEAN, CLEAN[::-1]) == []


@pytest.mark.parametrize("side", ["hypotheses", "references"])
@pytest.mark.parametrize("line", MARKED.values(), ids=MARKED.keys())
def test_a_mark_in_few_lines_is_named_with_its_number_and_first_line(side: str, line: str) -> None:
    marked = CLEAN[:200] + [line] * 10 + CLEAN[210:]
    texts = (marked, CLEAN) if side == "hypotheses" else (CLEAN, marked)
    assert [warning.partition(" (and 0")[0] for warning in remains(*texts)][:1] == [f"10 of 300 {side}"]
    assert "first in line 201" in remains(*texts)[0]


@pytest.mark.parametrize("line", MARKED.values(), ids=MARKED.keys())
def test_a_mark_in_most_hypotheses_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="200 of 300 hypotheses"):
        remains([line] * 200 + CLEAN[200:], CLEAN)


def test_a_mark_in_less_than_a_hundredth_of_the_lines_is_let_pass() -> None:
    assert remains(["▁"] * 2 + CLEAN[2:], CLEAN) == []


def test_entities_that_the_references_hold_as_well_are_part_of_the_text() -> None:
    page = ["Breaking&nbsp;space"] * 300
    assert remains(page, page) == []


def test_subword_marks_on_both_sides_are_refused_because_they_raise_the_score() -> None:
    with pytest.raises(UserError, match="@@"):
        remains(["ge@@ wann"] * 300, ["ge@@ wann"] * 300)


@pytest.mark.parametrize("line", ["das das das", "so ist das , das , das ,", "a b c d a b c d a b c d", "ja  ja\u00a0ja und nein"])
def test_three_times_in_a_row_is_a_repetition(line: str) -> None:
    assert repeats(line)


@pytest.mark.parametrize(
    "line", ["", "das das", "das, dass das", "a b a b a", "an anan an", "ja nein ja nein ja", "a b c d e a b c d e a b c d e"]
)
def test_less_or_longer_is_none(line: str) -> None:
    assert not repeats(line)
