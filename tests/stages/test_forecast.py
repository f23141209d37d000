"""The command that says what a training will take, and the rows of Table 3."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.config import parse
from nmt.errors import UserError
from nmt.forecast import by_formula, counted, total
from nmt.model import ModelConfig
from nmt.training import TrainConfig
from stages import forecast
from tests.copy_task import HARDWARE, MODEL, PROJECT, TRAIN, write_corpus

TABLE = PROJECT / "pipelines" / "table3.yaml"
VARIANTS = YAML(typ="safe", pure=True).load((PROJECT / "params.yaml").read_text("utf-8"))["variants"]
ROWS = {over: forecast.rows_of(TABLE, over, VARIANTS[over]) for over in ("base", "tiny")}
# Table 3 with every empty cell filled: N, d_model, d_ff, h, d_k, d_v, P_drop, label smoothing, thousands of updates.
PAPER = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1, 100),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, 0.1, 100),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, 0.1, 100),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, 0.1, 100),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, 0.1, 100),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, 0.1, 100),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, 0.1, 100),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, 0.1, 100),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, 0.1, 100),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, 0.1, 100),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1, 100),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, 0.1, 100),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, 0.1, 100),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, 0.1, 100),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1, 100),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, 0.0, 100),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, 0.2, 100),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 300),
}


@pytest.mark.parametrize("row", PAPER)
def test_a_row_over_base_is_the_papers(row: str) -> None:
    model, train, average = (ROWS["base"][row][part] for part in ("model", "train", "average"))
    shape = (model["layers"], model["d_model"], model["d_ff"], model["heads"], model["d_k"], model["d_v"], model["dropout"])
    assert (*shape, train["label_smoothing"], train["updates"] / 1000) == PAPER[row]
    assert model["positions"] == ("learned" if row == "E" else "sinusoidal")
    assert average == {"last": 1}
    others = {key: value for key, value in train.items() if key not in ("label_smoothing", "updates")}
    assert others == {key: value for key, value in VARIANTS["base"]["train"].items() if key in others}


def test_the_rows_stand_in_the_papers_order() -> None:
    assert list(ROWS["base"]) == list(ROWS["tiny"]) == list(PAPER)
    assert list(YAML(typ="safe", pure=True).load(TABLE.read_text("utf-8"))["paper"]) == list(PAPER)


@pytest.mark.parametrize("over", ["base", "tiny"])
@pytest.mark.parametrize("row", PAPER)
def test_parameters_by_formula_are_those_of_the_built_model(over: str, row: str) -> None:
    section = ROWS[over][row]
    parse(TrainConfig, section["train"], row)
    assert section["average"]["last"] <= section["train"]["checkpoints_kept"]
    model = parse(ModelConfig, section["model"], row)
    for pieces in (37_000, 41_000):
        assert by_formula(model, pieces) == counted(model, pieces)


def test_the_papers_column_of_parameters_is_met_with_41000_pieces_and_by_big_with_36000() -> None:
    printed = YAML(typ="safe", pure=True).load(TABLE.read_text("utf-8"))["paper"]
    for row, section in ROWS["base"].items():
        if (millions := printed[row]["parameters"]) is not None:
            found = total(by_formula(ModelConfig(**section["model"]), 36_000 if row == "big" else 41_000))
            assert found / 1e6 == pytest.approx(millions, abs=0.6)  # printed in whole millions


@pytest.mark.parametrize("row", PAPER)
def test_a_scaled_row_keeps_its_ratio_to_its_base(row: str) -> None:
    for part in ("model", "train"):
        for key, value in ROWS["base"][row][part].items():
            theirs, scaled, own = ROWS["base"]["base"][part][key], ROWS["tiny"][row][part][key], ROWS["tiny"]["base"][part][key]
            if key in ("dropout", "label_smoothing", "positions", "patience"):
                assert scaled == value  # no sizes
            elif not isinstance(value, str):
                assert scaled / own == pytest.approx(value / theirs), key


# --- the command ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml for a corpus without shards."""
    monkeypatch.chdir(tmp_path)
    content: dict[str, Any] = {
        "seed": 1,
        "corpora": {"toy": {"tokenizer": {"vocab_size": 50}}},
        "variants": {"small": {"model": MODEL, "train": TRAIN, "average": {"last": 1}}},
        "hardware": {**HARDWARE, "threads": "auto"},
    }
    YAML(typ="safe", pure=True).dump(content, Path("params.yaml"))
    return tmp_path


def test_it_says_what_is_assumed_and_what_is_known(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecast.main("small", "toy")
    before = capsys.readouterr().out
    assert "assumed: every sentence has 28 tokens" in before and "measured here" not in before
    write_corpus(project / "data/toy/shards")
    forecast.main("small", "toy", updates=2, devices="1,4", price=3.0, watts=500.0)
    after = capsys.readouterr().out
    assert "lengths of data/toy/shards" in after and "measured here, one process on cpu" in after
    assert len(re.findall(r"^│ +[14] │ +\d+:\d\d │ +[\d.]+ │ +[\d.]+ │$", after, re.M)) == 2


def test_rows_can_be_read_by_programs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = project / "table.yaml"
    own = "{common: {average.last: 1}, rows: {first: {}, second: {model.d_ff: 64}}}"
    paper = "{first: {parameters: 1}, second: {parameters: null}}"
    table.write_text(f"paper: {paper}\nvariants:\n  small: {own}\n")
    forecast.main("small", "toy", table=table, as_csv=True)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == "row,parameters"
    assert int(second.split(",")[1]) - int(first.split(",")[1]) == 2 * (16 + 1 + 16) * 32  # of two nets, 32 inner units more
    forecast.main("small", "toy", table=table)
    assert "1 M" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("{common: {}, rows: {first: {model.d_fff: 64}}}", r"table\.yaml, row first: variants\.small has no model\.d_fff"),
        ("{common: {mode.d_ff: 1}, rows: {first: {}}}", r"row first: variants\.small has no mode\.d_ff"),
    ],
)
def test_a_change_of_what_is_not_there_is_named(project: Path, own: str, message: str) -> None:
    (project / "table.yaml").write_text(f"paper: {{}}\nvariants:\n  small: {own}\n")
    with pytest.raises(UserError, match=message):
        forecast.main("small", "toy", table=Path("table.yaml"))


def test_a_table_without_such_rows_and_a_wrong_number_of_devices_are_named(project: Path) -> None:
    (project / "table.yaml").write_text("paper: {}\nvariants: {smal: {}}\n")
    with pytest.raises(UserError, match="has no rows over the variant small: did you mean smal"):
        forecast.main("small", "toy", table=Path("table.yaml"))
    with pytest.raises(UserError, match="--devices is 1,0"):
        forecast.main("small", "toy", devices="1,0")
