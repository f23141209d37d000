"""nmt.pieces: however many processes share the lines and wherever they are stopped, each line is worked on once and all stand in order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nmt.pieces
from nmt.bundle import load_bundle
from nmt.errors import UserError
from nmt.pieces import finish, finished, progress_of, unfinished
from nmt.ranks import Ranks
from nmt.search import DecodeConfig


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.pieces, "PIECE_LINES", 3)


def numbered(piece: list[str], first: int) -> Iterator[str]:
    return (f"{number} {line}" for number, line in enumerate(piece, start=first))


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("lines", [0, 1, 3, 4, 10])
def test_the_lines_stand_in_order_whoever_worked_on_them(processes: int, lines: int, tmp_path: Path) -> None:
    text = [f"line {number}" for number in range(lines)]
    done: list[str] = []

    def work(piece: list[str], first: int) -> Iterator[str]:
        done.extend(piece)
        return numbered(piece, first)

    counts = {finish(tmp_path, "test", text, Ranks(rank, processes), work, lambda lines, work: None) for rank in reversed(range(processes))}
    [count] = counts
    assert list(finished(tmp_path, "test", count)) == list(numbered(text, 1))
    assert sorted(done) == sorted(text)
    shares = [progress_of("test", text, Ranks(rank, processes)) for rank in range(processes)]
    assert sum(one.total or 0 for one in shares) == lines and sum(one.work or 0 for one in shares) == pytest.approx(sum(map(len, text)))


def test_what_is_there_is_kept_and_half_a_piece_is_not_there(tmp_path: Path) -> None:
    text = list("abcdefgh")

    def failing(piece: list[str], first: int) -> Iterator[str]:
        yield "x"
        if first > 1:
            raise KeyboardInterrupt
        yield from "yz"

    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path, "test", text, Ranks(), failing, lambda lines, work: None)
    assert [path.name for path in tmp_path.iterdir()] == ["test.0000000"]
    skipped: list[tuple[int, float]] = []
    count = finish(tmp_path, "test", text, Ranks(), numbered, lambda *done: skipped.append(done))
    assert list(finished(tmp_path, "test", count)) == ["x", "y", "z", *numbered(text[3:], 4)]
    assert skipped == [(3, pytest.approx(sum(map(len, "abc"))))]


def test_the_folder_is_named_by_all_that_decides_the_translations_and_held(
    model_folder: Path, learned_model_folder: Path, tmp_path: Path
) -> None:
    common: dict[str, Any] = dict(beam_size=4, length_penalty=0.6, max_length_offset=50, stop="exact", precision="float32")
    models = [[load_bundle(model_folder)], [load_bundle(learned_model_folder)], [load_bundle(model_folder)] * 2]
    sources = [tmp_path / "one", tmp_path / "two"]
    for source in sources:
        source.write_text(source.name)

    def name(bundles: int = 0, source: int = 0, more: int = 0, **changed: Any) -> Path:
        config = DecodeConfig(**{**common, **changed})
        with unfinished(tmp_path / "scratch", models[bundles], config, [sources[source]], Ranks(), more=more) as folder:
            return folder

    names = [name(), name(bundles=1), name(bundles=2), name(source=1), name(more=1), name(beam_size=3), name(penalty="length")]
    assert len(set(names)) == len(names) and name() == names[0]
    with unfinished(tmp_path / "scratch", models[0], DecodeConfig(**common), sources[:1], Ranks(), more=0):
        with pytest.raises(UserError, match="is in use by process"):
            name()
