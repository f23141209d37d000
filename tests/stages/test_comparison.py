"""The page of a comparison stands alone, escapes what people wrote, and says of seeds and scores what there is."""

import json
from pathlib import Path
from typing import Any

import pytest

from stages.comparison import charts, main
from tests.stages.test_report import Page

SIGNATURE = "nrefs:1|tok:13a"


def document(**changes: Any) -> dict[str, Any]:
    """Two sides, <a> and b, as pipelines/comparison.py tells of them."""
    tests = {"bleu": {"baseline": 31.0, "score": 31.2, "difference": 0.2, "bootstrap_p": 1.0, "randomization_p": 0.4321, "signatures": []}}
    row = {"line": 1234, "source": "<b>one</b>", "reference": "eins & zwei", "hypotheses": ["eins", ""], "chrf": [50.0, 0.0], "gain": -50.0}
    seeds = {"means": [31.0, 31.7], "deviations": [0.25, None], "counts": [3, 1], "difference": 0.7, "sentence_deviation": 0.2}
    pair = {
        "side": 1,
        "tests": tests,
        "seeds": {**seeds, "standard_error": None, "degrees": None, "p": None},
        "same_lines": 0.125,
        "lengths": [{"first": 3, "last": 4, "lines": 17, "bleu": [10.0, 12.5], "chrf": [20.0, 21.0]}],
        "wins": [],
        "losses": [row],
    }
    values = [{"score": 31.0, "confidence": 1.5}, None]
    test = {
        "lines": 4307,
        "source_sha256": "5" * 64,
        "reference_sha256": "6" * 64,
        "scores": {
            "bleu": {"signature": SIGNATURE, "values": values},
            "comet": {"signature": "model:m", "values": [None, {"score": 85.34, "confidence": 0.5}]},
        },
        "pairs": [pair],
    }
    return {
        "verdict": "It is <noise>.",
        "model": "demo-tiny",
        "sides": [
            {"name": "<a>", "revisions": ["a"], "seeds": [1, 2, 3], "cost": {"parameters": 1000, "flop": 1.2e15}},
            {"name": "b", "revisions": ["b"], "seeds": [1], "cost": {}},
        ],
        "warnings": ["stale & old"],
        "parameters": [{"name": "decode.beam_size", "values": [4, 1]}],
        "code": [{"path": "nmt/search.py", "stages": ["translate"]}],
        "data": [{"path": "data/demo/raw", "values": ["a" * 32, None]}],
        "lines": [{"set": "train", "values": [54000, 53000]}],
        "sets": {"test": test},
        "curves": {
            "loss": [{"side": side, "x": [1, 2], "y": [9.0, 8.0 - side]} for side in (0, 1)],
            "learning_rate": [{"side": side, "x": [1], "y": [0.1]} for side in (0, 1)],
        },
    } | changes


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "facts.json").write_text(json.dumps(document()))
    main(folder / "facts.json", folder / "page.html")
    return Page((folder / "page.html").read_text("utf-8"))


def test_nothing_is_fetched_and_every_table_can_be_reached(page: Page) -> None:
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in page.tags)
    scrolled = [attributes for _, attributes in page.tags if attributes.get("class") == "scroll"]
    assert scrolled and all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolled)


def test_links_lead_to_sections_and_ids_are_unique(page: Page) -> None:
    ids = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"} <= set(ids)


def test_the_page_tells_what_the_document_tells(page: Page) -> None:
    text = page.text()
    for words in (
        "demo-tiny: <a> against b", "b 1 31.70 none", "It is <noise>.", "stale & old", "31.00 ± 1.50 none", "bleu +0.20 1 0.4321",
        "12.5 % of the translations", "3 to 4 17 10.0 12.5 +2.5 20.0 21.0 +1.0", "line 1,234, chrF 50.0 to 0.0", "<b>one</b>",
        "eins & zwei", "nothing", "no line", "too few seeds for a test", "<a> 3 31.00 0.25", "FLOP 1.20e+15 unknown",
        "seeds 1, 2, 3 1", "decode.beam_size 4 1", "nmt/search.py translate", "a" * 12 + " none", "train 54,000 53,000",
        SIGNATURE, "comet none 85.34 ± 0.50", "6" * 64,
    ):  # fmt: skip
        assert words in text, words


def test_a_learning_rate_that_is_the_same_needs_no_chart() -> None:
    one = document()
    assert [chart["name"] for chart in charts(one)] == ["loss"]
    one["curves"]["learning_rate"][1]["y"] = [0.2]
    assert [chart["name"] for chart in charts(one)] == ["loss", "learning_rate"]


def test_without_differences_the_page_says_so(tmp_path: Path) -> None:
    facts = document(parameters=[], data=[], code=[], curves={})
    facts["sets"]["test"]["pairs"][0] |= {"seeds": None}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    main(tmp_path / "facts.json", tmp_path / "page.html")
    text = Page((tmp_path / "page.html").read_text("utf-8")).text()
    for words in (
        "No parameter of these models differs.",
        "Both sides have the same data.",
        "ran on the same code",
        "No curves were kept.",
    ):
        assert words in text
