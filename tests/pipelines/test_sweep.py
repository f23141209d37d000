"""`python -m pipelines.sweep` on a toy pipeline under real DVC, git and Prefect, as people call it; and the table it makes."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

from pipelines.sweep import Run, Sweep, SweepError, markdown, runs_of, table_of
from tests.pipelines.rows import TOY_PARAMS, repository
from tests.pipelines.toy import Toy, wait_until

PROJECT = Path(__file__).parents[2]
TINY = Sweep("table3", "tiny", "demo")
PARAMS: Any = YAML(typ="safe", pure=True).load((PROJECT / "params.yaml").read_text("utf-8"))
PAPER = {name: {"perplexity": 4.0, "bleu": 25.0, "parameters": None} for name in ("one", "two")}


# --- rows and tables ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_cannot_be_is_refused(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    with pytest.raises(SweepError, match=f"the seed {seed} cannot be"):
        runs_of(TINY, PARAMS, ["base"], [1, seed])


@pytest.mark.parametrize("suffix", [".md", ".csv"])
def test_a_table_is_no_part_of_the_repository(suffix: str) -> None:
    path = TINY.result.with_suffix(suffix)
    found = subprocess.run(["git", "check-ignore", "-q", "--no-index", str(path)], cwd=PROJECT, timeout=60)
    assert path == Path("runs/demo/table3-tiny").with_suffix(suffix) and found.returncode == 0


def test_every_row_is_the_variant_with_its_changes_and_the_common_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    runs = runs_of(TINY, PARAMS, [], [])
    assert len(runs) == 20 and {run.seed for run in runs} == {PARAMS["seed"]}
    base, other = runs[0].params, runs[1].params
    assert base["variants"]["tiny"]["average"] == {"last": 1} and base["reproduce"] == {
        "corpora": ["demo"],
        "variants": ["tiny"],
        "curves": [],
    }
    assert {**base["variants"]["tiny"]["model"], "heads": 1, "d_k": 128, "d_v": 128} == other["variants"]["tiny"]["model"]
    assert runs[1].changed == "heads 1, d_k 128, d_v 128" and runs[1].experiment == "table3-tiny-demo-A1-2017"
    assert {**base, **{key: PARAMS[key] for key in ("variants", "reproduce")}} == PARAMS  # nothing else is touched
    assert {**base["variants"], "tiny": PARAMS["variants"]["tiny"]} == PARAMS["variants"]
    some = runs_of(TINY, PARAMS, ["C1", "A1"], [3, 4])
    assert [(run.row, run.seed) for run in some] == [("A1", 3), ("A1", 4), ("C1", 3), ("C1", 4)]
    assert [run.params["seed"] for run in some] == [3, 4, 3, 4] and len({run.experiment for run in some}) == 4


@pytest.mark.parametrize(
    ("asked", "rows", "message"),
    [
        (Sweep("table3", "tiny", "demi"), [], "no corpus demi: known are demo"),
        (Sweep("table3", "tony", "demo"), [], "no rows over tony: known are base, tiny"),
        (TINY, ["A1", "A9"], "no row A9: known are base, A1"),
    ],
)
def test_what_is_not_there_is_named(asked: Sweep, rows: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    with pytest.raises(SweepError, match=message):
        runs_of(asked, PARAMS, rows, [])


def run(row: str, seed: int) -> Run:
    return Run(row, seed, f"t-{row}-{seed}", "", {})


def scores(perplexity: float, valid: float, test: float) -> dict[str, Any]:
    return {"valid": {"bleu": valid, "perplexity": perplexity}, "newstest": {"bleu": test, "chrf": 50.0}, "more": {"bleu": 99.0}}


def test_the_table_has_mean_and_sample_deviation_over_seeds_and_the_papers_numbers() -> None:
    runs = [run("one", 1), run("one", 2), run("one", 3), run("two", 1), run("two", 2)]
    found = [scores(4, 20, 30), scores(5, 22, 30), scores(6, 27, 30), None, scores(7, 9, 8)]
    table = table_of(runs, found, {"one": 1_234_567, "two": 2}, PAPER)
    one, two = table.iloc
    assert (one["perplexity"], one["perplexity ±"]) == (5, 1)  # of 4, 5, 6
    assert (one["bleu valid"], one["bleu valid ±"]) == (23, pytest.approx(math.sqrt((9 + 1 + 16) / 2)))
    assert (one["bleu test"], one["bleu test ±"], one["seeds"]) == (30, 0, 3)
    assert (two["perplexity"], two["seeds"]) == (7, 1) and math.isnan(two["perplexity ±"])  # of one alone there is none
    assert list(table["paper: bleu"]) == [25.0, 25.0]
    first, second = markdown(table, TINY).splitlines()[-2:]
    cells = [cell.strip() for cell in first.split("|")[1:-1]]
    assert cells == ["one", "", "1,234,567", "5.000 ± 1.000", "23.00 ± 3.61", "30.00 ± 0.00", "3", "4.00", "25.0", ""]
    assert second.split("|")[4].strip() == "7.000"


def test_a_row_of_which_nothing_is_finished_stands_in_the_table_without_scores() -> None:
    table = table_of([run("one", 1), run("two", 1)], [None, None], {"one": 1, "two": 2}, PAPER)
    assert list(table["row"]) == ["one", "two"] and list(table["seeds"]) == [0, 0]
    assert table["bleu valid"].isna().all()
    assert "nan" not in markdown(table, TINY).lower()


# --- the flow -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path, environment: dict[str, str], server: dict[str, str]) -> Iterator[Toy]:
    with repository(tmp_path / "toy", environment | server) as toy:
        yield toy


def table(toy: Toy) -> pd.DataFrame:
    return pd.read_csv(toy.folder / "runs/toy/rows-small.csv")


FLOW = ("pipelines.sweep", "rows", "--over", "small", "--corpus", "toy")


@pytest.mark.slow
@pytest.mark.essential
def test_a_row_that_fails_is_named_and_the_others_finish_and_the_next_call_runs_it_alone(toy: Toy) -> None:
    toy.touch("train-2-7.fail")
    code, output = toy.run(*FLOW)
    assert code == 1, output
    assert toy.ran() == ["data", "train-1-7", "train-3-7"]  # the data once
    assert "not finished: two (seed 7)" in output and "error: no good data in line 7" in output
    assert "Traceback" not in output
    found = table(toy)
    assert list(found["row"]) == ["one", "two", "three"] and list(found["parameters"]) == [10, 20, 30]
    assert list(found["bleu valid"])[::2] == pytest.approx([5.7, 15.7]) and math.isnan(found["bleu valid"][1])
    assert list(found["paper: perplexity"]) == [4.92, 5.29, 5.00]

    (toy.folder / "train-2-7.fail").unlink()
    code, output = toy.run(*FLOW)
    assert code == 0, output
    assert toy.ran() == ["train-2-7"]
    assert list(table(toy)["bleu test"]) == pytest.approx([6.7, 11.7, 16.7])
    code, shown = toy.run("dvc", "exp", "show", "--json")
    names = [experiment["name"] for experiment in json.loads(shown)[1]["experiments"]]
    assert sorted(names) == ["rows-small-toy-one-7", "rows-small-toy-three-7", "rows-small-toy-two-7"]
    assert not list((toy.folder / ".scratch/workspaces").glob("*/"))  # no workspace is left
    assert (toy.folder / "params.yaml").read_text() == TOY_PARAMS


@pytest.mark.slow
def test_after_a_kill_no_finished_row_is_run_again(toy: Toy) -> None:
    toy.touch("train-2-7.hold")
    flow = toy.start(*FLOW)
    toy.wait_for("train-2-7.started")
    os.kill(flow.pid, signal.SIGKILL)
    flow.communicate()
    wait_until(lambda: toy.processes() == [], "something outlives the flow")  # else the stage ends as it is being stopped
    (toy.folder / "train-2-7.hold").unlink()
    code, output = toy.run(*FLOW)
    assert code == 0, output
    assert toy.ran() == ["data", "train-1-7", "train-2-7", "train-3-7"]
    assert list(table(toy)["bleu valid"]) == pytest.approx([5.7, 10.7, 15.7])


def test_changes_that_are_not_committed_stop_before_any_work(toy: Toy) -> None:
    toy.set("n: 1", "n: 2")
    code, output = toy.run(*FLOW)
    assert code == 2 and output.count("\n") == 1
    assert output.startswith("error: experiments run on what is committed, and this is not: params.yaml")
    assert toy.ran() == []
