"""The lines that are shown are different ones, of each kind; the marks are where the words differ."""

from hypothesis import given
from hypothesis import strategies as st

from nmt.examples import DRAWN, EXTREME, Row, by_length, choose, differences

TEXT = st.text(st.sampled_from("ab \u00a0\u2028\x85\x1c."), max_size=20)


def rows(count: int) -> list[Row]:
    """Lines 1, 2, … of one to ten words, whose chrF is their number."""
    return [
        {
            "line": n,
            "source": f"s{n}",
            "reference": "",
            "hypothesis": "",
            "chrf": float(n),
            "reference_words": n % 10 + 1,
            "source_words": n,
        }
        for n in range(1, count + 1)
    ]


def test_twenty_lines_are_chosen_and_none_twice() -> None:
    chosen = choose(rows(500))
    assert {kind: len(found) for kind, found in chosen.items()} == {"drawn": DRAWN, "best": EXTREME, "worst": EXTREME}
    lines = [row["line"] for found in chosen.values() for row in found]
    assert len(set(lines)) == 20


def test_best_and_worst_are_the_extremes_of_the_longer_half() -> None:
    everything = rows(500)
    chosen = choose(everything)
    drawn = {row["line"] for row in chosen["drawn"]}
    longer = [row["line"] for row in everything if row["line"] not in drawn and row["reference_words"] >= 5.5]
    assert [row["line"] for row in chosen["best"]] == longer[::-1][:EXTREME]
    assert [row["line"] for row in chosen["worst"]] == longer[:EXTREME]


def test_chance_does_not_look_at_scores() -> None:
    other = [row | {"chrf": 100 - row["chrf"] / 10} for row in rows(500)]
    assert [row["line"] for row in choose(other)["drawn"]] == [row["line"] for row in choose(rows(500))["drawn"]]


def test_small_sets_are_shared_out() -> None:
    for count in range(21):
        chosen = choose(rows(count))
        lines = [row["line"] for found in chosen.values() for row in found]
        assert len(lines) == len(set(lines)) and set(lines) <= set(range(1, count + 1))
        assert len(chosen["drawn"]) == min(count, DRAWN)


def test_blank_and_repeated_sources_are_left_out() -> None:
    blank = [row | {"source": "\u200b \u00a0"} for row in rows(30)]
    assert not any(choose(blank).values())
    same = [row | {"source": "Save"} for row in rows(30)]
    assert sum(map(len, choose(same).values())) == 1


def test_words_that_the_other_has_not_are_marked() -> None:
    assert differences("Der  alte Mann", "Der junge Mann") == [("Der  ", False), ("alte", True), (" Mann", False)]
    assert differences("a b c", "x") == [("a b c", True)]
    assert differences("same words", "same words") == [("same words", False)]
    assert differences("", "x") == []


@given(TEXT, TEXT)
def test_the_pieces_are_the_text(text: str, other: str) -> None:
    pieces = differences(text, other)
    assert "".join(piece for piece, _ in pieces) == text
    marked = [word for piece, differs in pieces if differs for word in piece.split()]
    assert len(marked) >= len(text.split()) - len(other.split())
    assert not any(piece != piece.strip() for piece, differs in pieces if differs)


def test_lengths_are_told_by_powers_of_two() -> None:
    known = {"hypothesis_words": 3, "reference_words": 4}
    rows = [{"source_words": words, "chrf": 10.0 * words, "finished": words != 4, **known} for words in (0, 1, 2, 3, 4, 4, 9)]
    assert by_length(rows) == [
        {"first": 1, "last": 1, "lines": 1, "chrf": 10, "ratio": 0.75, "cut": 0},
        {"first": 2, "last": 2, "lines": 1, "chrf": 20, "ratio": 0.75, "cut": 0},
        {"first": 3, "last": 4, "lines": 3, "chrf": 110 / 3, "ratio": 0.75, "cut": 2},
        {"first": 9, "last": 16, "lines": 1, "chrf": 90, "ratio": 0.75, "cut": 0},
    ]
