"""Models of real git revisions and DVC experiments compared: what differs is named, the same has p = 1, what does not fit is refused."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines import dvc
from pipelines.compare import markdown, tables
from pipelines.comparison import by_length, comparable, compare, compare_set, extremes
from pipelines.revisions import model, siblings
from pipelines.verdict import verdict
from tests.pipelines.scored import Scored

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's own


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Scored:
    """A commit with dropout 0.2 and seed 1, and experiments: the same with seed 2, dropout 0.6, a shorter test set."""
    scored = Scored(tmp_path_factory.mktemp("scored"), environment)
    scored.make()
    scored.experiment("same-2", "seed=2")
    scored.experiment("drop-1", "variants.tiny.model.dropout=0.6")
    scored.experiment("short", "corpora.demo.lines=70")
    return scored


@pytest.fixture
def scored(made: Scored, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scored]:
    """The repository, the current folder of the test, as it was committed."""
    monkeypatch.chdir(made.folder)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.run("git", "checkout", "-q", ".")


def compared(*names: str, seeds: bool = False) -> dict[str, Any]:
    """The document that the command writes."""
    firsts = [model(name, None) for name in names]
    found = compare([siblings(first) for first in firsts] if seeds else [[first] for first in firsts], names)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.essential
def test_two_experiments_are_told_apart_by_what_differs_and_judged(scored: Scored) -> None:
    code, output = scored.call("python", "-m", "pipelines.compare", "HEAD", "drop-1")
    assert code == 0, output
    found = json.loads((scored.folder / "comparison" / "comparison.json").read_text())
    assert found["parameters"] == [{"name": "variants.tiny.model.dropout", "values": [0.2, 0.6]}]
    assert (found["code"], found["data"], found["warnings"]) == ([], [], [])
    assert found["lines"] == [{"set": "train", "values": [1000, 1000]}, {"set": "test", "values": [80, 80]}]
    assert [side["cost"] for side in found["sides"]] == [{"parameters": 1000, "updates": 20, "tokens": 200, "flop": 1.2e6}] * 2
    assert found["curves"]["loss"] == [{"side": side, "x": [10, 20], "y": [5 + share, 2 + share]} for side, share in ((0, 0.2), (1, 0.6))]
    tested = found["sets"]["test"]["pairs"][0]["tests"]["bleu"]
    assert tested["difference"] == pytest.approx(tested["score"] - tested["baseline"], abs=0.011) and tested["difference"] < 0
    assert tested["bootstrap_p"] < 0.05 and "is more than chance" in found["verdict"]
    assert found["verdict"] in re.sub(r"\s+", " ", output)
    for name in ("comparison.md", "comparison.html"):
        text = (scored.folder / "comparison" / name).read_text()
        assert found["verdict"] in text and "variants.tiny.model.dropout" in text
    page = (scored.folder / "comparison" / "comparison.html").read_text()
    assert "http" not in page and "<script" not in page and page.count("<svg") == 3


@pytest.mark.slow
def test_a_model_compared_with_itself_is_no_different(scored: Scored) -> None:
    found = compared("HEAD", "workspace")
    (pair,) = found["sets"]["test"]["pairs"]
    assert [(one["difference"], one["bootstrap_p"], one["randomization_p"]) for one in pair["tests"].values()] == [(0, 1, 1)] * 3
    assert (pair["same_lines"], pair["wins"], pair["losses"], found["parameters"]) == (1, [], [], [])
    assert "no difference, all translations are the same (p = 1)" in found["verdict"]


@pytest.mark.slow
def test_seeds_are_found_by_all_else_being_equal(scored: Scored) -> None:
    assert [one.revision for one in siblings(model("HEAD", None))] == ["HEAD", "same-2"]
    assert [one.revision for one in siblings(model("same-2", None))] == ["same-2"]  # HEAD is no experiment
    found = compared("drop-1", "HEAD", seeds=True)
    assert [(side["revisions"], side["seeds"]) for side in found["sides"]] == [(["drop-1"], [1]), (["HEAD", "same-2"], [1, 2])]
    seeds = found["sets"]["test"]["pairs"][0]["seeds"]
    assert seeds["counts"] == [1, 2] and seeds["p"] is None
    assert "(1 seed)" in found["verdict"] and "too few seeds to tell" in found["verdict"]


@pytest.mark.slow
def test_test_sets_of_different_size_are_refused_with_both_counts(scored: Scored) -> None:
    code, output = scored.call("python", "-m", "pipelines.compare", "HEAD", "short")
    assert code == 2
    assert re.sub(r"\s+", " ", output).strip() == (
        "error: the set test has another number of lines on each side, so it is not compared: 80 in HEAD, 70 in short"
    )


@pytest.mark.slow
def test_code_and_results_that_are_out_of_date_are_named(scored: Scored) -> None:
    (scored.folder / "code.py").write_text("one = 2\n")
    scored.run("dvc", "repro", "-q")
    params = scored.folder / "params.yaml"
    params.write_text(params.read_text().replace("dropout: 0.2", "dropout: 0.3"))
    found = compared("HEAD", "workspace")
    assert found["code"] == [{"path": "code.py", "stages": ["train"]}]
    (warning,) = found["warnings"]
    assert warning.startswith("workspace: ") and "variants.tiny.model.dropout" in warning and "dvc repro" in warning
    scored.run("git", "checkout", "-q", ".")
    scored.run("dvc", "checkout", "-q")


def test_what_cannot_be_found_is_named_with_what_there_is(scored: Scored) -> None:
    with pytest.raises(dvc.DvcError, match=r"'nosuch'.*drop-1, same-2, short"):
        model("nosuch", None)
    with pytest.raises(dvc.DvcError, match="HEAD has no model demo-big, only demo-tiny"):
        model("HEAD", "demo-big")


def facts(lines: int, text: str) -> dict[str, Any]:
    return {"test": {"lines": lines, "source_sha256": "s", "reference_sha256": text}}


def test_sets_are_compared_only_where_count_and_text_are_the_same() -> None:
    assert comparable([facts(3003, "a"), facts(3003, "a")], ["x", "y"]) == (["test"], [])
    assert comparable([facts(3003, "a"), {}], ["x", "y"]) == ([], [])
    _, (counts,) = comparable([facts(3003, "a"), facts(2737, "b")], ["x", "y"])
    assert "3,003 in x, 2,737 in y" in counts
    _, (text,) = comparable([facts(3003, "a"), facts(3003, "b")], ["x", "y"])
    assert "another text" in text


def table(hypotheses: list[str], chrf: list[float]) -> Any:
    import pandas as pd

    references = ["a b c", "d e f", "g", "a b c"]
    words = [len(line.split()) for line in references]
    columns = {"line": [1, 2, 3, 4], "source": references, "reference": references, "reference_words": words, "source_words": words}
    return pd.DataFrame({**columns, "hypothesis": hypotheses, "chrf": chrf})


def test_wins_and_losses_are_the_longer_lines_that_changed_most_each_source_once() -> None:
    one, other = (
        table(["a b x", "d e f", "x", "a b x"], [50.0, 100.0, 0.0, 50.0]),
        table(["a b c", "d x f", "g", "a b c"], [100.0, 60.0, 100.0, 100.0]),
    )
    found = extremes(one, other)
    assert [(row["line"], row["gain"], row["hypotheses"]) for row in found["wins"]] == [(1, 50.0, ["a b x", "a b c"])]
    assert [(row["line"], row["gain"]) for row in found["losses"]] == [(2, -40.0)]
    assert [(row["first"], row["last"], row["lines"], row["chrf"]) for row in by_length(one, other)] == [
        (1, 1, 1, [0.0, 100.0]),
        (3, 4, 3, [66.67, 86.67]),
    ]


def document(**pair: Any) -> dict[str, Any]:
    """A document with one pair on the set test, in which `pair` stands in for what it names."""
    tests = {"bleu": {"baseline": 31.0, "score": 31.2, "difference": 0.2, "bootstrap_p": 0.3, "randomization_p": 0.4, "signatures": []}}
    found = {"side": 1, "tests": tests, "seeds": None, "same_lines": 0.5, "lengths": [], "wins": [], "losses": []}
    values = {"scores": {}, "lines": 4307, "pairs": [found | pair]}
    return {
        "model": "demo-tiny",
        "sides": [{"name": name, "seeds": [1], "cost": {}} for name in ("a|b", "c")],
        "sets": {"valid": values, "test": values},
        "warnings": [],
        **dict.fromkeys(("parameters", "code", "data", "lines"), []),
    }


def seeds(p: float | None, counts: tuple[int, int] = (3, 3)) -> dict[str, Any]:
    deviations = (0.2, 0.2) if p is not None else (None, 0.2)
    known = {"means": (31.0, 31.7), "deviations": deviations, "counts": counts, "difference": 0.7, "sentence_deviation": 0.2}
    return known | {"standard_error": None if p is None else 0.26, "degrees": None if p is None else 25.0, "p": p}


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ({}, "31.00 to 31.20 (+0.20) cannot be told from noise over the choice of sentences"),
        ({"same_lines": 1.0}, "no difference"),
        ({"seeds": seeds(0.012)}, "31.00 ± 0.20 (3 seeds) to 31.70 ± 0.20 (3 seeds), +0.70 is more than chance: p = 0.0120"),
        ({"seeds": seeds(0.2)}, "cannot be told from noise"),
        ({"seeds": seeds(0.2, (2, 3))}, "2 seeds are few"),
        ({"seeds": seeds(None, (1, 3))}, "too few seeds to tell"),
    ],
)
def test_the_verdict_is_one_sentence_that_says_noise_or_not(pair: dict[str, Any], told: str) -> None:
    sentence = verdict(document(**pair))
    assert told in sentence and sentence.endswith(".")


def test_two_tests_that_disagree_leave_it_undecided_and_several_comparisons_lower_the_level() -> None:
    one = document()
    one["sets"]["test"]["pairs"][0]["tests"]["bleu"] |= {"bootstrap_p": 0.04}
    assert "is undecided" in verdict(one)
    one["sides"].append({"name": "d"})
    one["sets"]["test"]["pairs"].append(one["sets"]["test"]["pairs"][0] | {"side": 2})
    assert "is undecided" not in verdict(one) and "With 2 comparisons the level of each is 0.025" in verdict(one)


def test_comet_is_compared_where_it_was_computed_in_the_same_way() -> None:
    facts = {"lines": 1, "source_sha256": "s", "reference_sha256": "r"}
    one = {"score": 85.34, "confidence": 0.5, "signature": "bs:1000|seed:12345|model:m|precision:float32"}
    other = one | {"score": 84.0, "signature": "bs:1000|seed:12345|model:m|precision:float16"}
    texts = table(["a b c d"] * 4, [50.0] * 4)
    cases = [((one, one), ["85.34 ± 0.50"] * 2), ((one, other), ["85.34 ± 0.50", "none"]), ((None, one), ["none", "85.34 ± 0.50"])]
    for sides, told in cases:
        scores = [[{"test": facts | ({"comet": side} if side else {})}] for side in sides]
        found = compare_set("test", scores, [[texts], [texts]])
        shown = tables(document() | {"sets": {"test": found}})[0][2]
        assert next(row for row in shown if row[0] == "comet") == ["comet", *told]


def test_markdown_escapes_and_has_every_table() -> None:
    one = document() | {"verdict": "noise", "warnings": ["stale"]}
    text = markdown(one)
    assert "| a\\|b | c |" in text and "> stale" in text
    assert all(f"## {title}" in text for title, _, _ in tables(one))
