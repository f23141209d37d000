"""The index lists every model of the workspace with its scores, and fetches nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.published import METRIC
from stages.index import main
from tests.stages.test_report import HEADER, Page, set_scores


def add_run(folder: Path, name: str, sets: dict[str, Any], perplexity: float) -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    (run / "scores.json").write_text(json.dumps({"sets": sets, "perplexity": {"average": perplexity, "last": 9}}))
    return run


def test_every_model_has_its_scores_and_the_way_to_its_report(tmp_path: Path) -> None:
    first = add_run(tmp_path, "demo/tiny", {"valid": set_scores(31, 32), "test": set_scores(21, 19)}, 5.125)
    (first / "averaged").mkdir()
    (first / "averaged" / "config.json").write_text(json.dumps({"parameters": 7578624, "seed": 2017, "train": {"updates": 2000}}))
    (first / "report.html").write_text("")
    (first / "training.tsv").write_text(HEADER + "1000\t5e6\t4.5\t60\t\t\t1e-3\t1\t0\n2000\t1e7\t3.25\t9\t2.5\t12.1825\t7e-4\t1\t0\n")
    add_run(tmp_path, "mine/base", {"valid": set_scores(1, 2), "news": set_scores(41, None), "talks": set_scores(51, 52)}, 6.25)
    main(tmp_path / "runs")
    page = Page((tmp_path / "runs" / "index.html").read_text("utf-8"))
    text = page.text()
    for words in (
        "demo tiny test 4,321 21.00 ± 1.25 19.00",
        "5.12 7,578,624 2,000 2017",
        "mine base news 4,321 41.00 ± 1.25 none",
        "talks 4,321 51.00",
    ):
        assert words in text, words
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["#models", "demo/tiny/report.html"]
    assert {"script", "link", "img"} & {tag for tag, _ in page.tags} == set()


def test_models_of_the_papers_data_stand_beside_the_papers_bleu(tmp_path: Path) -> None:
    add_run(tmp_path, "demo/base", {"test": set_scores(1, 2)}, 5)
    main(tmp_path / "runs")
    assert "Beside the paper" not in Page((tmp_path / "runs" / "index.html").read_text("utf-8")).text()
    for variant, score in (("base", 26.8), ("big", 28.5)):
        add_run(tmp_path, f"wmt14-en-de/{variant}", {"newstest2014": set_scores(20, 2) | {METRIC: {"score": score}}}, 4.5)
    main(tmp_path / "runs")
    text = Page((tmp_path / "runs" / "index.html").read_text("utf-8")).text()
    assert "wmt14-en-de base newstest2014 26.80 27.3 -0.50 wmt14-en-de big newstest2014 28.50 28.4 +0.10" in text  # the paper's Table 2


def test_an_empty_workspace_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro"):
        main(tmp_path)
