"""What a flow leaves to be seen in Prefect: how far each stage is, its tables, the metrics, where the report is.

Nothing is read back from there, and nothing fails for it: where the server does not take an artifact, the log says so.
"""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from pipelines import dvc

# train: 1,200/3,300 updates (36 %), 7.1 updates/s, 4:56 left, loss 2.814         a line of nmt/progress.py
PROGRESS = re.compile(r"^[^:]+: (?P<done>[\d,]+)/(?P<total>[\d,]+) [^ ]+ \(\d+ %\), .+$")
ROWS = 60  # of a table, which people are to read


class Progress:
    """Shows how far a stage is, as it says itself: the artifact <stage>-progress, made when it first says so."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._artifact: UUID | None = None

    def look(self, line: str) -> None:
        """Take notice of a line that the stage has printed."""
        found = PROGRESS.match(line)
        if found is None:
            return
        done, total = (int(found[name].replace(",", "")) for name in ("done", "total"))
        percent = round(100 * done / max(total, 1), 1)
        if self._artifact is None and percent == 100:  # quickly done: the log has it
            return
        with _never_in_the_way():
            if self._artifact is None:
                self._artifact = create_progress_artifact(percent, key=key(self.stage, "progress"), description=line)  # type: ignore[assignment]
            else:
                update_progress_artifact(self._artifact, percent, description=line)


def leave_outputs(stage: str, outputs: Sequence[Path], lasting: bool) -> None:
    """Leave the tables of a stage (its .tsv files) as tables and, where its workspace is `lasting`, its pages (.html) as links."""
    for path in outputs:
        with _never_in_the_way():
            if path.suffix == ".tsv":
                create_table_artifact(table(path), key=key(stage, path.stem), description=f"`{path}`")
            elif path.suffix == ".html" and lasting:
                create_link_artifact(link(path), link_text=str(path), key=key(stage, path.stem))


def leave_metrics(folder: Path) -> None:
    """Leave the metrics of the workspace `folder`, where it has any."""
    with _never_in_the_way():
        if text := dvc.metrics_table(folder):
            create_markdown_artifact(text, key="metrics")


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a .tsv file as they stand there: all, or some 60 at equal distances and the last, with all of the columns."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    step = max(1, -(-len(rows) // ROWS))
    return rows[(len(rows) - 1) % step :: step]


def link(path: Path) -> str:
    """Where a page is: at RUNS_URL, where the environment says that runs/ is served there, else the file itself."""
    if (served := os.environ.get("RUNS_URL")) and path.parts[0] == "runs":
        return f"{served.rstrip('/')}/{path.relative_to('runs').as_posix()}"
    return path.resolve().as_uri()


def key(stage: str, what: str) -> str:
    """The name of an artifact, of lower-case letters, digits and dashes: train@demo-tiny, progress -> train-demo-tiny-progress."""
    return re.sub(r"[^a-z0-9]+", "-", f"{stage}-{what}".lower()).strip("-")


@contextmanager
def _never_in_the_way() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever keeps it from the server, the stage goes on
        get_run_logger().warning("an artifact is missing: %s", " ".join(str(error).split()) or type(error).__name__)
