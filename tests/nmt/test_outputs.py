from pathlib import Path

import pytest

from nmt.outputs import passing_folder, whole_file, whole_folder


def test_a_finished_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out"
    for name in ("first", "second"):
        with whole_folder(path) as building:
            (building / name).write_text(name)
            assert building.parent == path.parent and not (path / name).exists()
    assert [file.name for file in path.iterdir()] == ["second"] and list(path.parent.iterdir()) == [path]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(ZeroDivisionError), whole_folder(path) as building:
        (building / "half").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [path] and list(path.iterdir()) == [path / "old"]


def test_what_a_killed_run_left_behind_is_not_in_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "torn").touch()
    with whole_folder(tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == [] and not (tmp_path / "out.part").exists()


def test_a_passing_folder_is_empty_and_gone_afterwards_also_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "new" / "work"
    path.mkdir(parents=True)
    (path / "left").touch()
    with pytest.raises(ZeroDivisionError), passing_folder(path) as folder:
        assert folder == path and list(path.iterdir()) == []
        raise ZeroDivisionError
    assert not path.exists()


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with whole_file(path) as building:
        building.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as building:
        building.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
