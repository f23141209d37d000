"""What README.md says of sharing: two clones and a remote, of which one trains and the other fetches."""

import subprocess
from pathlib import Path

import pytest

from tests.pipelines.toy import Toy

pytestmark = pytest.mark.slow


@pytest.fixture
def remote(toy: Toy, tmp_path: Path) -> Path:
    """The remote of the toy pipeline, which is committed with its results and has pushed them."""
    folder = tmp_path / "remote"
    toy.environment |= {f"GIT_{role}_{what}": f"t@{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (toy.folder / ".gitignore").write_text((toy.folder / ".gitignore").read_text() + "ran.txt\n*.started\n")
    called(toy, "dvc", "remote", "add", "-d", "shared", str(folder))
    git(toy, "add", ".")
    git(toy, "commit", "-qm", "Reproduce")
    git(toy, "tag", "model-1")
    called(toy, "dvc", "push", "--run-cache")
    return folder


def git(toy: Toy, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=toy.folder, env=toy.environment, check=True, capture_output=True, text=True).stdout


def called(toy: Toy, *arguments: str) -> str:
    """The output of `python -m` with these arguments, which must end well."""
    code, output = toy.run(*arguments)
    assert code == 0, output
    return output


def clone(toy: Toy, folder: Path) -> Toy:
    git(toy, "clone", "-q", str(toy.folder), str(folder))
    return Toy(folder, toy.environment)


def test_another_clone_fetches_what_is_committed_and_what_was_only_tried_and_trains_nothing(toy: Toy, remote: Path, tmp_path: Path) -> None:
    two, three = (clone(toy, tmp_path / name) for name in ("two", "three"))
    called(two, "dvc", "repro", "--pull")
    called(three, "dvc", "pull")
    called(three, "dvc", "repro")
    for other in (two, three):
        assert other.ran() == []
        assert git(other, "status", "--porcelain") == ""  # dvc.lock is the first one's
        for name in ("prepared", "model-a", "model-b", "scores", "metrics.json"):
            assert other.read(name) == toy.read(name)

    for each in (toy, two):
        each.set("a: {x: 1}", "a: {x: 3}")
    called(toy, "dvc", "repro")
    assert toy.ran() == ["train-a", "score"]
    called(toy, "dvc", "push", "--run-cache")
    called(two, "dvc", "repro", "--pull")
    assert two.ran() == ["score"]  # its metrics.json is kept by git and not by the remote
    assert "dvc.lock" in git(two, "diff", "--name-only") and two.read("dvc.lock") == toy.read("dvc.lock")


def test_a_model_is_had_by_its_tag_when_the_branch_is_elsewhere(toy: Toy, remote: Path, tmp_path: Path) -> None:
    before = toy.read("model-a")
    toy.set("a: {x: 1}", "a: {x: 3}")
    called(toy, "dvc", "repro")
    git(toy, "commit", "-qam", "Another")
    called(toy, "dvc", "push")
    assert toy.read("model-a") != before
    called(toy, "dvc", "get", str(toy.folder), "model-a", "--rev", "model-1", "--out", str(tmp_path / "model"))
    assert (tmp_path / "model").read_text() == before
