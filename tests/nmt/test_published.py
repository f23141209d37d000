"""The paper's numbers, each with its place, and the kind of BLEU that they are."""

from dataclasses import fields

from nmt import published
from nmt.scoring import moses_bleu


def test_scores_are_those_of_tables_2_and_3() -> None:
    assert published.BLEU["wmt14-en-de", "base"] == {"newstest2014": 27.3, "valid": 25.8}  # Table 2; Table 3, first row
    assert published.BLEU["wmt14-en-de", "big"] == {"newstest2014": 28.4, "valid": 26.4}  # Table 2; Table 3, last row
    assert published.BLEU["wmt14-en-fr", "base"] == {"newstest2014": 38.1}
    assert published.BLEU["wmt14-en-fr", "big-en-fr"] == {"newstest2014": 41.8}


def test_they_compare_with_a_score_that_is_computed() -> None:
    found = moses_bleu(["a b c d"], ["a b c d"], "en")
    assert "score" in {field.name for field in fields(found[published.METRIC])}
