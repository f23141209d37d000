"""The one module that calls DVC: which stages have to run, the running of one of them, and what a revision holds.

DVC's Python interface is read for the graph and for the files of revisions alone. All else is its command line, in child
processes, because that is what DVC keeps stable and what people type. (pipelines/nursery.py has the one of a stage at hand.)

A stage writes into a file, not a pipe, and runs below a guard (pipelines/guard.py), in a session of its own. So no Ctrl-C of the
terminal reaches it, and when the flow stops or dies, however it does, the stage saves its work and ends, and `dvc` gives its locks back.
(A SIGTERM would kill `dvc` first, and a stage that ends then is never recorded.) Until it has ended DVC calls its files busy: `plan` waits
for that long, and then says who has them.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro

from pipelines import guard
from pipelines.nursery import Call, Nursery

POLL = 0.2  # seconds between two looks at a running stage
BUSY = re.compile(
    r"^ERROR: (?:failed to reproduce '[^']*': )?'(?P<path>[^\n]*)' is busy, it is being blocked by:\n(?P<blockers>(?:  \(PID .*\n)+)", re.M
)
BLOCKER = re.compile(r"\(PID (\d+)\): (.*)")
STOPPED = re.compile(r"^ERROR: .*exited with (?:143|130|-15|-2)$", re.M)  # by SIGTERM or SIGINT, which a stage answers by saving its work
NO_LOCK = re.compile(r"^ERROR: .*Unable to acquire lock", re.M)
HELD = re.compile(r"^error: (\S+ is in use by process .*)$", re.M)  # of a stage: its scratch folder
PATIENCE = guard.GRACE_SECONDS + 5  # for which a plan waits for a stage that a dead flow has left to save its work


class DvcError(Exception):
    """DVC cannot do what is asked of it, and the user can put it right. The message is one sentence."""


class Busy(DvcError):
    """Another process holds what is needed."""


@dataclass(frozen=True)
class Step:
    """One stage of a plan, as `dvc stage list` names it."""

    stage: str
    after: tuple[str, ...]  # the stages of the same plan that it comes after
    gpu: bool = False  # whether dvc.yaml says `meta: {gpu: true}`
    job: bool = False  # whether dvc.yaml says `meta: {job: true}`
    outputs: tuple[Path, ...] = field(default=(), compare=False)  # counted from the current folder


def plan(targets: Sequence[str], folder: Path = Path()) -> list[Step]:
    """The stages of a workspace that may have to run for `targets`, in the order of `dvc repro`; without targets, for all of dvc.yaml.

    These are the stages that `dvc status` reports as changed, and all that come after them: their dependencies change
    only once the former have run. A target is what `dvc repro` takes, and stands for itself and all it is made from.
    Raises DvcError where the pipeline cannot be read, a target is unknown, or another process runs one of the stages.
    """
    try:
        with Repo(str(folder)) as repo:
            graph = get_active_graph(repo.index.graph)  # edges lead from a stage to those it depends on
            wanted = {stage for target in targets or [str(folder / "dvc.yaml")] for stage in repo.stage.collect(target)}
            order = plan_repro(graph)
    except DvcException as error:
        raise DvcError(_one_line(str(error))) from None
    for stage in reversed(order):
        if stage in wanted:
            wanted.update(graph.successors(stage))
    order = [stage for stage in order if stage in wanted]
    names = {stage: stage.name if folder != Path() else stage.addressing for stage in order}  # the latter counts from the current folder
    changed = _changed(list(names.values()), folder)
    steps: dict[str, Step] = {}
    for stage, name in names.items():
        after = tuple(names[upstream] for upstream in graph.successors(stage) if names[upstream] in steps)
        if after or name in changed:
            outputs = tuple(Path(os.path.relpath(out.fs_path)) for out in stage.outs)
            meta = stage.meta or {}
            steps[name] = Step(name, after, bool(meta.get("gpu")), bool(meta.get("job")), outputs)
    return list(steps.values())


def metrics_table(folder: Path = Path()) -> str:
    """The metrics of the workspace `folder` as a Markdown table, or nothing where there are none yet."""
    table = _output("metrics", "show", "--md", folder=folder).strip()
    return table if table.partition("\n")[0].count("|") > 2 else ""  # files without metrics make a column of paths


def metrics_files(folder: Path) -> list[str]:
    """The metrics files of the workspace `folder`, as it names them."""
    return list(json.loads(_output("metrics", "show", "--json", folder=folder)).get("", {}).get("data", {}))


WORKSPACE = "workspace"


def open_revision(name: str) -> Any:
    """The files of a git revision, a DVC experiment or the `workspace`, those that DVC keeps among them, as an fsspec file system.

    Raises DvcError where there is no such revision.
    """
    files = DVCFileSystem(rev=None if name == WORKSPACE else name)
    try:
        files.info("")  # before which it does not look for the revision
        return files
    except DvcException as error:
        known = ", ".join(sorted(experiments())) or "none"
        raise DvcError(f"{_one_line(str(error))}: name a git revision, {WORKSPACE}, or an experiment ({known})") from None


def experiments() -> list[str]:
    """The names of all DVC experiments, newest first within each commit."""
    return list(dict.fromkeys(_output("exp", "list", "--all-commits", "--name-only").split()))


def difference(kind: str, old: str, new: str) -> dict[str, dict[str, Any]]:
    """What `dvc params diff` or `dvc metrics diff` (`kind`) say: {"a.b": {"old": …, "new": …}}, by file where it is not params.yaml."""
    revisions = [old] if new == WORKSPACE else [old, new]
    files = json.loads(_output(kind, "diff", "--json", *revisions)) if old != WORKSPACE or new != WORKSPACE else {}
    return {name if file == "params.yaml" else f"{file}: {name}": found for file, names in files.items() for name, found in names.items()}


def cache_folder() -> Path:
    """Where the workspace keeps its outputs and what it remembers of runs."""
    return Path(_output("cache", "dir").strip()).resolve()


def share_cache(folder: Path, cache: Path) -> None:
    """Have the workspace `folder` use this cache."""
    _output("cache", "dir", "--local", str(cache), folder=folder)


def save_experiment(folder: Path, name: str, new: Sequence[str]) -> None:
    """Keep what the workspace `folder` holds as the experiment `name`; an older one is replaced.

    That is all files that git knows, and `new`, which it may not know yet.
    """
    _output("exp", "save", "--force", "--name", name, *(word for path in new for word in ("--include-untracked", path)), folder=folder)


def experiment(commit: str, name: str) -> str:
    """The git reference of the experiment `name` on `commit`."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"


def busy(text: str) -> str | None:
    """One sentence on who holds what, where `text` ends the output of a `dvc` that was kept out by another process, else None."""
    found = BUSY.search(text)
    if found is None and (held := HELD.search(text)):
        return held[1]
    if found is None:
        return "another DVC process holds the lock of this workspace: try again when it has ended" if NO_LOCK.search(text) else None
    blockers = BLOCKER.findall(found["blockers"])
    holders = " and ".join(f"`{command}` (process {pid})" for pid, command in blockers)
    groups = " ".join(dict.fromkeys(f"-{_group(int(pid))}" for pid, _ in blockers))
    return (
        f"{os.path.relpath(found['path'])} is in use by {holders}, started in another terminal or left by a flow that was killed:"
        f" wait until it has ended, or let it save its work and end: kill -INT {groups}"
    )


def preempted(text: str) -> bool:
    """Whether `text` ends the output of a `dvc` whose stage was stopped by a signal, as a machine does that is taken away."""
    return STOPPED.search(text) is not None


class Children:
    """The stages that one flow runs, so that all of them can be stopped. Its methods may be called from several threads."""

    def __init__(self) -> None:
        # The `python` of a stage's command is the one that runs this flow, and says what it does at once.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._nursery = Nursery(os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"})
        self._lock = threading.Lock()
        self._started: list[Call] = []
        self.stopped = False

    def start(
        self, stage: str, log: Path, folder: Path = Path(), held: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> Call | None:
        """Start `dvc repro` of this one stage of a workspace, its output in the file `log`. After `stop` nothing is started: None.

        The open files `held` stay open until `dvc` ends; `environment` is added to this process's.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self.stopped:
                return None
            call = self._nursery.call(_options("repro", "--single-item", stage), log, folder, held, environment or {})
            self._started.append(call)
            return call

    def stop(self, grace: float) -> None:
        """Have every running stage save its work and end; what is left of it after `grace` seconds is killed."""
        with self._lock:
            self.stopped = True
        for call in self._started:
            call.stop(grace)
        for call in self._started:
            call.wait()

    def close(self) -> None:
        """Nothing more will be started."""
        self._nursery.close()


def follow(child: Call | subprocess.Popen[bytes], log: Path) -> Iterator[str]:
    """The lines that `child` writes into the file `log`, each as soon as it is complete, until `child` has ended.

    Of a line drawn again and again with carriage returns, as progress bars do, only what it shows in the end.

        b"epoch 1\\n 10%\\r 50%\\r100%\\ndone"   ->   "epoch 1", "100%", "done"
    """
    with log.open("rb") as stream:
        pending, ended = b"", False
        while not ended:
            ended = child.poll() is not None  # asked before reading, so that its last words are read too
            *lines, pending = (pending + stream.read()).split(b"\n")
            yield from (_shown(line) for line in lines)
            pending = pending[pending.rfind(b"\r", 0, -1) + 1 :]
            if not ended:
                with suppress(subprocess.TimeoutExpired):  # its end is noticed at once
                    child.wait(POLL)
        if pending:
            yield _shown(pending)


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines in `log`, as `follow` shows them. However long the file, only its last 16 KiB are read."""
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 16_384))
        return [_shown(line) for line in stream.read().removesuffix(b"\n").split(b"\n")[-count:]]


def _changed(stages: Sequence[str], folder: Path) -> set[str]:
    """Those of `stages` that differ from dvc.lock now. Raises DvcError where another process runs one of them for longer than PATIENCE."""
    deadline, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            return set(json.loads(_output("status", "--json", *stages, folder=folder)))
        except Busy as reason:
            if time.monotonic() > deadline:
                raise
            if not told:
                print(f"waiting up to {PATIENCE:.0f} seconds: {reason}", file=sys.stderr, flush=True)
                told = True
            time.sleep(1)


def _options(*arguments: str) -> list[str]:
    """The arguments of one call. Without `--wait-for-lock` DVC gives up after 3 s, and a stage that ended then is lost."""
    return ["--wait-for-lock", *arguments]


def _output(*arguments: str, folder: Path = Path()) -> str:
    """What `dvc` prints in `folder`. Raises DvcError with its complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *_options(*arguments)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        if reason := busy(done.stderr):
            raise Busy(reason)
        raise DvcError(f"dvc {arguments[0]}: {_one_line(done.stderr)}")
    return done.stdout


def _group(pid: int) -> int:
    """The process group of `pid`, or `pid` itself where it has ended meanwhile."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return pid


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def _one_line(text: str) -> str:
    return " ".join(text.removeprefix("ERROR: ").split())
