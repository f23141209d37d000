"""What is read from a stage's lines and files for Prefect, and that it arrives there."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from pipelines import artifacts
from pipelines.artifacts import Progress, key, leave_outputs, link, table
from tests.pipelines.toy import Toy


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have gone to the server: kind, then what it holds."""
    found: list[tuple[Any, ...]] = []

    def create(percent: float, key: str, description: str) -> Any:
        found.append(("new", percent, key, description))
        return uuid4()

    monkeypatch.setattr(artifacts, "create_progress_artifact", create)
    monkeypatch.setattr(
        artifacts, "update_progress_artifact", lambda at, percent, description: found.append(("more", percent, description))
    )
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda rows, key, description: found.append(("table", rows, key)))
    monkeypatch.setattr(artifacts, "create_link_artifact", lambda link, link_text, key: found.append(("link", link, key)))
    return found


def test_progress_is_one_artifact_that_follows_the_lines_of_the_stage(left: list[tuple[Any, ...]]) -> None:
    lines = [
        "train: 1,200/3,300 updates (36 %), 7.1 updates/s, 4:56 left, loss 2.814",
        "train: 3,300/3,300 updates (100 %), 7.4 updates/s, 7:25 in all",
    ]
    progress = Progress("train@demo-tiny")
    for line in ("Running stage 'train@demo-tiny':", lines[0], "train: goes on from update 3/4", lines[1]):
        progress.look(line)
    assert left == [("new", 36.4, "train-demo-tiny-progress", lines[0]), ("more", 100.0, lines[1])]


def test_what_is_done_when_it_first_says_so_needs_no_artifact(left: list[tuple[Any, ...]]) -> None:
    progress = Progress("clean@demo")
    progress.look("clean: 5,693/5,693 pairs (100 %), 81,312 pairs/s, 0:00 in all")
    progress.look("fetch: 5,693 pairs, 81,312 pairs/s")
    assert left == []


def test_a_table_is_shown_whole_or_at_equal_distances_to_its_last_row(tmp_path: Path) -> None:
    path = tmp_path / "training.tsv"
    path.write_text("update\tloss\n1\t\n2\t0.5\n")
    assert table(path) == [{"update": "1", "loss": ""}, {"update": "2", "loss": "0.5"}]
    path.write_text("update\n" + "".join(f"{update}\n" for update in range(1, 1001)))
    updates = [int(row["update"]) for row in table(path)]
    assert len(updates) <= artifacts.ROWS and updates[-1] == 1000
    assert {later - sooner for sooner, later in zip(updates, updates[1:], strict=False)} == {17}
    path.write_text("update\n")
    assert table(path) == []


def test_tables_and_pages_are_left_and_no_page_of_a_workspace_that_goes(
    left: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNS_URL", raising=False)
    for name in ("curve.tsv", "report.html", "model.bin"):
        Path(name).write_text("x\n1\n")
    outputs = [Path("curve.tsv"), Path("report.html"), Path("model.bin")]
    leave_outputs("score@a", outputs, lasting=False)
    leave_outputs("score@a", outputs, lasting=True)
    tables = ("table", [{"x": "1"}], "score-a-curve")
    assert left == [tables, tables, ("link", (tmp_path / "report.html").as_uri(), "score-a-report")]


def test_a_page_is_where_runs_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_URL", "http://here:8000/")
    assert link(Path("runs/demo/tiny/report.html")) == "http://here:8000/demo/tiny/report.html"
    assert link(Path("report.html")) == Path("report.html").resolve().as_uri()


def test_names_of_artifacts_have_lower_case_letters_digits_and_dashes() -> None:
    assert key("train@wmt14-en-de-Base_2", "training") == "train-wmt14-en-de-base-2-training"


def test_a_server_that_is_away_keeps_no_stage_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def away(*arguments: Any, **more: Any) -> None:
        raise ConnectionError("all attempts\nfailed")

    monkeypatch.setattr(artifacts, "create_progress_artifact", away)
    monkeypatch.setattr(
        artifacts, "get_run_logger", lambda: type("Log", (), {"warning": lambda self, form, text: told.append(form % text)})()
    )
    Progress("a").look("a: 1/2 lines (50 %), 1 lines/s")
    assert told == ["an artifact is missing: all attempts failed"]


PIPELINE = """\
stages:
  train:
    matrix: {variant: [a]}
    cmd: python stages/work.py
    outs: [training.tsv, report.html]
"""
WORK = """\
import os, signal, time
from pathlib import Path

resumed = Path("saved").exists()
print(f"train: {1 + resumed}/2 updates ({50 + 50 * resumed} %), 1.0 updates/s, loss 1.000", flush=True)
if not resumed:
    Path("saved").touch()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
Path("training.tsv").write_text("update\\tloss\\n1\\t1.5\\n2\\t1.0\\n")
Path("report.html").write_text("<p>a report</p>")
"""


@pytest.mark.slow
def test_a_stage_that_was_stopped_from_outside_goes_on_and_is_seen_in_prefect(fresh: Toy, server: dict[str, str]) -> None:
    fresh.environment = fresh.environment | server
    (fresh.folder / "dvc.yaml").write_text(PIPELINE)
    (fresh.folder / "stages" / "work.py").write_text(WORK)
    code, output = fresh.run("pipelines.repro")
    assert code == 0, output
    assert "train@a was stopped from outside" in output

    def ask(what: str) -> Any:
        request = Request(f"{server['PREFECT_API_URL']}/{what}/filter", b"{}", {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return json.load(answer)

    found = {one["key"]: one for one in ask("artifacts") if one["key"].startswith("train-a")}
    assert json.loads(found["train-a-training"]["data"]) == [{"update": "1", "loss": "1.5"}, {"update": "2", "loss": "1.0"}]
    assert (fresh.folder / "report.html").as_uri() in found["train-a-report"]["data"]
    assert found["train-a-progress"]["data"] == 50.0  # of the first try: the second had nothing to tell before it was done
    assert [(run["name"], run["run_count"]) for run in ask("task_runs")] == [("train@a", 2)]
    lines = [line["message"] for line in ask("logs")]
    assert sum(line.startswith("train: 2/2 updates") for line in lines) == 1
