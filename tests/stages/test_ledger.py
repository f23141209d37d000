"""The command that shows what cleaning dropped."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from nmt.ledger import Ledger
from nmt.lines import write_lines
from stages.ledger import main


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 lines in two parts; of the first part every tenth was blank, of the second all were duplicates."""
    monkeypatch.chdir(tmp_path)
    YAML(typ="safe", pure=True).dump({"corpora": {"toy": {"languages": {"src": "en", "tgt": "de"}}}}, Path("params.yaml"))
    Path("data/toy/raw").mkdir(parents=True)
    for language in ("en", "de"):
        write_lines(Path(f"data/toy/raw/train.{language}"), [f"[b]{language} {number}" for number in range(1, 101)])
    with Ledger(Path("data/toy/ledger.parquet")) as ledger:
        ledger.drop([("a.en", line, line, "blank") for line in range(10, 51, 10)])
        ledger.drop([("b.en", line, 50 + line, "duplicate") for line in range(1, 51)])


def test_dropped_pairs_are_counted_by_rule_and_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    main("toy")
    counts = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert counts == [
        "55 pairs dropped, by rule",
        "50 duplicate",
        "5 blank",
        "55 pairs dropped, by file",
        "50 b.en",
        "5 a.en",
    ]


@pytest.mark.parametrize(("rule", "numbers"), [("blank", [10, 20, 30, 40, 50]), ("duplicates", range(51, 100, 10)), (None, [])])
def test_the_very_pairs_are_shown_spread_over_the_text(rule: str | None, numbers: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    main("toy", rule, show=5)
    texts = Path("data/toy/raw/train.en").read_text().splitlines()
    output = capsys.readouterr().out
    places = re.findall(r"^data/toy/raw/train\.en:(\d+), from [ab]\.en: \w+\n  (.*)$", output, re.M)
    assert len(places) == 5 and all(texts[int(line) - 1].strip() == text for line, text in places)
    shown = [line.strip() for line in output.splitlines() if "[b]" in line]
    assert len(shown) == 10 and (rule is None or shown == [f"[b]{language} {number}" for number in numbers for language in ("en", "de")])


def test_more_than_there_are_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    main("toy", "blank", show=1000)
    assert capsys.readouterr().out.count("[b]en") == 5
    main("toy", "ratio", show=3)
    assert "0 pairs dropped" in capsys.readouterr().out


def test_an_unknown_rule_and_a_corpus_not_cleaned_are_one_sentence() -> None:
    with pytest.raises(UserError, match="--rule duplcate is unknown: did you mean duplicate?"):
        main("toy", "duplcates")
    Path("data/toy/ledger.parquet").unlink()
    with pytest.raises(UserError, match=r"ledger\.parquet is not there: run `dvc repro clean@toy` first"):
        main("toy")


@pytest.mark.parametrize("name", ["../toy", "toy.languages", ".", "", "a/b.c"])
def test_a_name_that_is_no_corpus_is_repeated_whole(name: str) -> None:
    with pytest.raises(UserError) as raised:
        main(name)
    assert str(raised.value).startswith(f"params.yaml: there is no corpora.{name}: ")
