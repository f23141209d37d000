"""Locks, links and what git says of revisions; whole workspaces are tested with the sweep that makes them."""

import subprocess
from pathlib import Path

import pytest

from pipelines import workspaces
from pipelines.workspaces import GitError, committed, git, head, link, lock, refuse_uncommitted


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Path:
    """A git repository without a commit, the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    subprocess.run(["git", "init", "-q"], check=True)
    return tmp_path


def commit(text: str) -> str:
    Path("file").write_text(text)
    git("add", "file")
    git("-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-qm", text)
    return head()


def test_revisions_are_read_and_what_is_not_there_is_none(repository: Path) -> None:
    with pytest.raises(GitError, match=r"\Agit rev-parse: fatal: "):
        head()
    first, second = commit("one\ntwo\n"), commit("three")
    assert (committed(first, "file"), committed(second, "file")) == ("one\ntwo\n", "three")
    assert committed(first, "other") is None and committed("refs/nosuch", "file") is None


def test_what_is_not_committed_is_named(repository: Path) -> None:
    commit("one")
    refuse_uncommitted(["file"])
    Path("file").write_text("two")
    refuse_uncommitted(["other"])
    with pytest.raises(GitError, match="this is not: file; commit it"):
        refuse_uncommitted(["file", "other"])


def test_a_lock_is_waited_for_and_given_up_when_the_flow_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "POLL", 0.01)
    looks: list[int] = []
    told: list[str] = []

    def stopped() -> bool:
        looks.append(1)
        return len(looks) > 3

    path = tmp_path / "new" / "lock"
    with lock(path, lambda: False, told.append) as held:
        assert held is not None and told == []
        with lock(path, stopped, told.append) as second:
            assert second is None
    assert len(told) == 1 and str(path) in told[0]  # told once, however often it looked
    with lock(path, lambda: False, told.append) as again:
        assert again is not None


def test_own_files_are_linked_where_the_workspace_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text/a", "text/b", "space/text/b"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    link(["text/a", "text/b", "text/c", str(tmp_path / "text" / "a")], Path("space"))
    found = {str(path.relative_to("space/text")): path.read_text() for path in Path("space/text").iterdir()}
    assert found == {"a": "text/a", "b": "space/text/b"}
