"""Experiments asked for by what differs: their parameters and names, and the flow on a toy pipeline under real DVC, git and Prefect."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipelines.experiments import ExperimentError, changed, name_of, own_files, write_params
from pipelines.sweep import Sweep, runs_of
from tests.pipelines.rows import TOY_PARAMS, repository
from tests.pipelines.toy import Toy

PROJECT = Path(__file__).parents[2]
TINY = Sweep("table3", "tiny", "demo")
PARAMS: Any = YAML(typ="safe", pure=True).load((PROJECT / "params.yaml").read_text("utf-8"))
ASK = """\
import json, sys
from pipelines.experiments import experiment
state = experiment(**json.loads(sys.argv[1]), return_state=True)
print(state.type.value, state.message)
"""


def test_only_what_is_named_differs_and_the_original_stays() -> None:
    found = changed(PARAMS, ["debian"], [], {"seed": 5, "variants.tiny.train.updates": 10})
    assert (found["seed"], found["variants"]["tiny"]["train"]["updates"]) == (5, 10)
    assert found["reproduce"] == {**PARAMS["reproduce"], "corpora": ["debian"]}
    assert PARAMS["seed"] == 2017 and changed(PARAMS, [], [], {}) == PARAMS
    found["seed"], found["variants"]["tiny"]["train"]["updates"] = 2017, PARAMS["variants"]["tiny"]["train"]["updates"]
    assert {**found, "reproduce": PARAMS["reproduce"]} == PARAMS


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((["demi"], [], {}), "no corpora demi: known are demo"),
        (([], ["tony"], {}), "no variants tony: known are tiny"),
        (([], [], {"variants.tiny.train.update": 10}), "no variants.tiny.train.update, which is to be 10"),
        (([], [], {"seed.more": 1}), "no seed.more"),
    ],
)
def test_what_is_not_there_is_named(asked: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        changed(PARAMS, *asked)


def test_other_values_make_another_name_in_whatever_order_they_stand() -> None:
    one, other = {"seed": 1, "decode.beam_size": 2}, {"decode.beam_size": 2, "seed": 1}
    assert name_of(PARAMS, {}) == "demo-tiny"
    assert name_of(PARAMS, one) == name_of(PARAMS, other) != name_of(PARAMS, {"seed": 1})
    assert name_of(PARAMS, one).startswith("demo-tiny-")


def test_the_own_files_are_those_of_the_corpora_that_are_built() -> None:
    files = {"kind": "files", "sets": {"train": [{"src": "a", "tgt": "b"}], "valid": [{"src": "c", "tgt": "d"}]}}
    params = {"reproduce": {"corpora": ["mine", "demo"]}, "corpora": {"mine": {"source": files}, "demo": {"source": {"kind": "wheel"}}}}
    assert list(own_files(params)) == ["a", "b", "c", "d"]


def test_writing_parameters_keeps_comments_and_what_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    before = (PROJECT / "params.yaml").read_text("utf-8").splitlines()
    for asked in runs_of(TINY, PARAMS, ["big", "E"], []):
        shutil.copy(PROJECT / "params.yaml", tmp_path)
        write_params(asked.params, tmp_path / "params.yaml")
        after = (tmp_path / "params.yaml").read_text("utf-8")
        assert YAML(typ="safe", pure=True).load(after) == asked.params
        changed = [new for old, new in zip(before, after.splitlines(), strict=True) if old.split() != new.split()]
        assert 5 < len(changed) < 20 and sum("#" in line for line in changed) > 3


@pytest.fixture
def toy(tmp_path: Path, environment: dict[str, str], server: dict[str, str]) -> Iterator[Toy]:
    with repository(tmp_path / "toy", environment | server) as toy:
        (toy.folder / "ask.py").write_text(ASK)
        yield toy


@pytest.mark.slow
def test_an_experiment_runs_beside_the_project_and_only_once(toy: Toy) -> None:
    asked = json.dumps({"corpora": ["toy"], "overrides": {"seed": 9, "variants.small.model.x": 3}})
    toy.touch("train-3-9.fail")
    code, output = toy.run("ask", asked)
    assert "FAILED failed: train@toy-small" in output and "error: no good data in line 7" in output, output
    (toy.folder / "train-3-9.fail").unlink()
    code, output = toy.run("ask", asked)
    assert "COMPLETED the experiment toy-small-" in output, output
    assert toy.ran() == ["data", "train-3-9"]  # the data once, though the second began anew
    code, output = toy.run("ask", asked)
    assert "COMPLETED nothing to do: the experiment toy-small-" in output, output
    assert toy.ran() == []

    (name,) = toy.run("dvc", "exp", "list", "--name-only")[1].split()
    shown = toy.run("dvc", "metrics", "diff", "--json", "HEAD", name)[1]
    found = json.loads(shown[shown.index("{") :])  # before it DVC says that HEAD has none
    assert found["runs/toy/small/metrics.json"]["valid.bleu"]["new"] == pytest.approx(3 * 2 + 0.9)
    assert (toy.folder / "params.yaml").read_text() == TOY_PARAMS
    assert not (toy.folder / "runs").exists() and not list((toy.folder / ".scratch/workspaces").glob("*/"))
