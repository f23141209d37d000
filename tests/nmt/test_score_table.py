"""The table shows every set and score, with signatures below, whatever is unknown."""

import re

import pytest

from nmt.evaluation import Texts, evaluate
from nmt.score_table import LOOKS, ROWS, show


def test_every_score_look_and_signature_is_shown_for_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a b c d e", "f g h i j"]
    sets, _ = evaluate({name: Texts(lines, lines, ["a b c d e", "f g h x j"], [False, False]) for name in ("valid", "news")}, "de")
    sets["news"]["unfinished"] = 1234
    show(sets)
    scores = {name for name, found in sets["news"].items() if isinstance(found, dict) and "signature" in found}
    assert set(ROWS) - {"comet"} == {"bleu_unseen"} | scores
    shown = capsys.readouterr().out
    assert "valid, 2 lines" in shown and "news, 2 lines" in shown
    for title in (*ROWS, *LOOKS):
        assert (f" {title} " in shown) == (title != "comet")
    assert shown.count(f"{sets['news']['bleu']['score']:.2f} ± {sets['news']['bleu']['confidence']:.2f}") >= 2
    assert "none" in shown and "unknown" in shown and "1,234" in shown
    assert f"\nter                     {sets['news']['ter']['signature']}\n" in shown


def test_comet_is_shown_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a b c d e"]
    show(evaluate({"news": Texts(lines, lines, lines, [False])}, "de", {"news": ([85.34], "model:m")})[0])
    shown = capsys.readouterr().out
    assert "85.34 ± 0.00" in shown and re.search(r"\ncomet +bs:1000\|seed:12345\|model:m\n", shown)
