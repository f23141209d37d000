from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt import chunks
from nmt.chunks import made, parallel_text
from nmt.download import sha256_of
from nmt.errors import UserError
from nmt.lines import write_lines

LINES = st.lists(st.text(st.sampled_from("ab\u2028\x85\v\f\r\u00a0 \U0001f600"), max_size=5), max_size=30)


@given(LINES, st.integers(1, 12), st.integers(1, 40))
def test_chunks_hold_all_lines_in_order_whatever_their_size(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], every: int, block: int
) -> None:
    """Also with characters that other readers take for the end of a line, and with files read in small blocks."""
    folder = tmp_path_factory.mktemp("chunks")
    src, tgt = folder / "src", folder / "tgt"
    write_lines(src, lines)
    write_lines(tgt, [line * 3 for line in lines])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BLOCK", block)
        text = parallel_text(src, tgt, every)
    assert text.lines == len(lines) and text.sha256 == (sha256_of(src), sha256_of(tgt))
    found = list(text.chunks())
    assert [chunk.number for chunk in found] == list(range(len(found)))
    assert [chunk.first for chunk in found] == list(range(0, len(lines), every))
    assert all(chunk.lines == every for chunk in found[:-1])
    read = [text.read(chunk) for chunk in found]
    assert [len(side) for both in read for side in both] == [chunk.lines for chunk in found for _ in range(2)]
    assert [line for both in read for line in both[0]] == lines
    assert [line for both in read for line in both[1]] == [line * 3 for line in lines]


def test_sides_of_unequal_length_are_refused_with_both_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", ["x"] * 10)
    write_lines(tmp_path / "b", ["x"] * 9)
    with pytest.raises(UserError, match="a has 10 lines, .*b has 9: run the stage that wrote them again"):
        parallel_text(tmp_path / "a", tmp_path / "b", 4)


def test_of_two_that_make_the_same_folder_at_once_the_first_ones_stays_and_nothing_else(tmp_path: Path) -> None:
    with made(tmp_path / "000001") as slow:
        (slow / "src").write_text("half of it")
        with made(tmp_path / "000001") as fast:
            (fast / "src").write_text("all of it")
        assert (tmp_path / "000001" / "src").read_text() == "all of it"
        (slow / "src").write_text("all of it")
    assert [(path.name, path.read_text()) for path in tmp_path.rglob("*") if path.is_file()] == [("src", "all of it")]
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_folder_that_is_not_finished_vanishes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), made(tmp_path / "000001") as folder:
        (folder / "src").write_text("half of it")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
