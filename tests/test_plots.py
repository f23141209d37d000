"""`dvc plots` without a network: the page holds its scripts, and its templates draw the columns that the stages write."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
PLOTS = ROOT / ".dvc" / "plots"
PAGE = (PLOTS / "page.html").read_text(encoding="utf-8")
WRITTEN = {
    "training": {"update", "loss", "perplexity", "valid_loss", "valid_perplexity", "learning_rate"},
    "lengths": {"set", "words", "source", "reference", "hypothesis"},
}


def fields(value: Any) -> set[str]:
    """The names of all columns that a Vega-Lite template reads."""
    if isinstance(value, dict):
        own = {value["field"]} if isinstance(value.get("field"), str) else set()
        return own.union(value.get("fold", []), *map(fields, value.values()))
    return set().union(*map(fields, value)) if isinstance(value, list) else set()


def test_the_page_fetches_nothing() -> None:
    assert PAGE.count("{plot_divs}") == 1 and "{scripts}" not in PAGE
    outside = re.sub(r"<script>.*?</script>", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"<(?:script|link|img)|@import|url\(", outside)
    assert "<script src" not in PAGE and "sourceMappingURL" not in PAGE
    for package in ("vega 5.33.1", "vega-lite 5.23.0", "vega-embed 6.29.0"):
        assert f"<script>/* {package} */" in PAGE
    assert "Redistribution and use in source and binary forms" in PAGE


def test_the_page_is_the_one_that_dvc_is_told_to_use() -> None:
    config = (ROOT / ".dvc" / "config").read_text()
    assert "html_template = plots/page.html" in config


def test_the_columns_are_those_of_the_code() -> None:
    for name, code in (("training", "nmt/training.py"), ("lengths", "stages/score.py")):
        text = (ROOT / code).read_text()
        assert all(column in text for column in WRITTEN[name]), name


@pytest.mark.parametrize("name", WRITTEN)
def test_templates_draw_columns_that_are_written(name: str) -> None:
    template = json.loads((PLOTS / f"{name}.json").read_text())
    read = {field for field in fields(template) if not field.startswith("<DVC")} - {"rev", "side", "lines"}
    assert read and read <= WRITTEN[name]
    assert template["data"] == {"values": "<DVC_METRIC_DATA>"}


def test_every_template_of_dvc_yaml_is_there() -> None:
    stages = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())["stages"]
    used = {
        options["template"]
        for stage in stages.values()
        for plot in stage.get("plots", [])
        for options in plot.values()
        if "template" in options
    }
    assert used == {path.stem for path in PLOTS.glob("*.json")}


@pytest.mark.slow
def test_dvc_writes_a_page_with_the_curves_and_no_address(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".dvc" / "plots", tmp_path / ".dvc" / "plots")
    shutil.copyfile(ROOT / ".dvc" / "config", tmp_path / ".dvc" / "config")
    (tmp_path / "training.tsv").write_text(
        "update\tloss\tperplexity\tvalid_loss\tvalid_perplexity\tlearning_rate\n50\t8.125\t99\t\t\t0.1\n"
    )
    (tmp_path / "dvc.yaml").write_text("plots: [{training.tsv: {template: training, x: update, y: loss}}]\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "plots", "show"], cwd=tmp_path, check=True, capture_output=True)
    page = (tmp_path / "dvc_plots" / "index.html").read_text()
    assert "cdn" not in page and "vegaEmbed('#" in page and '"8.125"' in page
