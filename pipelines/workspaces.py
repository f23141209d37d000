"""Workspaces for experiments: git worktrees of one commit, which share the project's DVC cache and its scratch folder.

.scratch/workspaces/table3-tiny-demo-A1-2017/       the worktree, while its experiment runs
.scratch/workspaces/table3-tiny-demo-A1-2017.lock   held by the flow, and by what saves its work there when that is killed

A workspace is made anew for each attempt, so that nothing torn is ever gone on from: finished stages come back from the cache, an
unfinished training from the scratch folder.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipelines import dvc

POLL = 0.5  # seconds between two looks at a lock


class GitError(Exception):
    """Git cannot do what is asked of it, and the user can put it right. The message is one sentence."""


def head() -> str:
    """The present commit. Raises GitError without any."""
    return git("rev-parse", "--verify", "HEAD^{commit}")


def refuse_uncommitted(paths: Sequence[str]) -> None:
    """Raise GitError where one of `paths` is not as the present commit has it: a worktree would not have the change."""
    if changed := git("status", "--porcelain", "--", *paths):
        names = ", ".join(line[3:] for line in changed.splitlines()[:5])
        raise GitError(f"experiments run on what is committed, and this is not: {names}; commit it, or take it back")


def committed(revision: str, path: str) -> str | None:
    """The text of a file in a revision, None where there is no such revision or file."""
    done = _git("show", f"{revision}:{path}")
    return done.stdout if done.returncode == 0 else None


@contextmanager
def lock(path: Path, stopped: Callable[[], bool], tell: Callable[[str], None]) -> Iterator[IO[str] | None]:
    """Hold the file `path` alone, once it is free; None when `stopped` says so before that. `tell` hears who has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        told = False
        while not stopped():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield file
                return
            except BlockingIOError:
                if not told:
                    tell(f"waiting until another process, perhaps left by a flow that was killed, lets go of {path}")
                    told = True
                time.sleep(POLL)
        yield None


def make(folder: Path, commit: str, cache: Path, scratch: Path) -> None:
    """Make the workspace `folder` of `commit`, in the place of what is there, with this cache and this scratch folder."""
    remove(folder)
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    scratch.mkdir(parents=True, exist_ok=True)
    link([str(scratch)], folder)
    dvc.share_cache(folder, cache)


def remove(folder: Path) -> None:
    """Remove the workspace `folder`. What its experiment made is in the cache and in the experiment."""
    shutil.rmtree(folder, ignore_errors=True)
    git("worktree", "prune")


def link(paths: Sequence[str], folder: Path) -> None:
    """Put what stands at `paths`, which git need not know, into the workspace `folder` too."""
    for path in map(Path, paths):
        if not path.is_absolute() and path.exists() and not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(path.resolve())


def git(*arguments: str) -> str:
    """What `git` prints, without the last line's end. Raises GitError with its complaint."""
    done = _git(*arguments)
    if done.returncode != 0:
        raise GitError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.removesuffix("\n")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    return subprocess.run(["git", *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
