"""The proof tells equal from unequal, and why."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from nmt.bundle import Bundle, load_bundle
from nmt.proof import Found, Search, Text, failures, prove, tables
from nmt.rescoring import rescore
from nmt.search import DecodeConfig
from nmt.translation import Translator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bundle(taught_model_folder: Path) -> Bundle:
    return load_bundle(taught_model_folder)


Change = Callable[[str, Found], Found]


def as_it_is(line: str, found: Found) -> Found:
    return found


def at(chosen: str, **values: Any) -> Change:
    """Give the line `chosen` these values and leave all others as they are."""
    return lambda line, found: replace(found, **values) if line == chosen else found


class Echo:
    """An engine that knows this project's translations, and gives them but for what `change` makes of each."""

    name, arithmetic, positions = "echo 1.0", "float32 on paper", 75

    def __init__(self, bundle: Bundle, change: Change = as_it_is) -> None:
        self.bundle, self.change = bundle, change
        self.longest: list[int] = []

    def translate(self, lines: Sequence[str], longest: int, search: Search) -> list[Found]:
        """See Engine."""
        self.longest.append(longest)
        config = DecodeConfig(
            beam_size=search.beam_size, length_penalty=search.alpha, max_length_offset=50, stop="beam_filled", precision="float32"
        )
        results = Translator(self.bundle, config, CPU, 1000).translate(lines, search.beam_size)
        best = [max(result, key=lambda one: one.log_prob / one.tokens**search.alpha) for result in results]
        sources, ids = (self.bundle.tokenizer.encode(texts) for texts in (lines, [one.text for one in best]))
        scores = rescore(self.bundle.model, sources, ids)
        return [
            self.change(line, Found(one.text, source, tokens, score.producible / (len(tokens) + 1) ** search.alpha, one.finished))
            for line, one, source, tokens, score in zip(lines, best, sources, ids, scores, strict=True)
        ]


def proof_of(bundle: Bundle, lines: list[str], change: Change = as_it_is, precision: str = "float32") -> dict[str, Any]:
    done: list[tuple[int, float]] = []
    proof = prove(
        bundle, Echo(bundle, change), precision, Text("s", "r", lines, lines), Search(), CPU, 1000, lambda *told: done.append(told)
    )
    assert [sum(told) for told in zip(*done, strict=True)] == [2 * len(lines), pytest.approx(2 * sum(map(len, lines)))]
    return proof


def test_an_equal_engine_is_proven_and_blank_lines_are_not_asked(bundle: Bundle, sentences: list[str]) -> None:
    proof = proof_of(bundle, [*sentences[:20], "", "\u00a0"])
    assert (proof["proven"], proof["compared"], proof["identical"], proof["identical_share"]) == (True, 20, 20, 1.0)
    assert proof["differing"] == [] and proof["largest_score_difference"] == 0
    assert proof["bleu"]["nmt"] == proof["bleu"]["engine"]


def test_a_line_beyond_the_engines_positions_is_left_out_and_told(bundle: Bundle, sentences: list[str]) -> None:
    """An engine of 75 positions has room for sources of 24 tokens, which may become 50 more and an end symbol."""
    lines = [*sentences[:5], " ".join(["the"] * 24), " ".join(["the"] * 25), *sentences[5:10]]
    assert [len(ids) for ids in bundle.tokenizer.encode(lines[5:7])] == [24, 25]
    proof = proof_of(bundle, lines, at(lines[6], text="never asked"))
    assert (proof["too_long"], proof["compared"], proof["text"]["lines"]) == (1, 11, 12)
    assert proof["proven"] and [one["number"] for one in proof["differing"] if one["why"] != "cut"] == []


def test_each_line_is_given_the_room_of_its_own_search(bundle: Bundle, sentences: list[str]) -> None:
    engine = Echo(bundle)
    prove(bundle, engine, "float32", Text("s", "r", ["the", *sentences[:3]], ["the"] * 4), Search(), CPU, 1000, lambda lines, work: None)
    longest = max(len(ids) for ids in bundle.tokenizer.encode(sentences[:3]))
    assert engine.longest == [longest + 50 + 1]


def test_another_line_fails_float32_and_is_shown_with_its_margin(bundle: Bundle, sentences: list[str]) -> None:
    lines, [other] = sentences[:20], bundle.tokenizer.encode(["das Haus"])
    proof = proof_of(bundle, lines, at(lines[4], text="das Haus", ids=other))
    assert (proof["proven"], proof["identical"]) == (False, 19)
    [differing] = proof["differing"]
    assert (differing["number"], differing["source"], differing["engine"], differing["why"]) == (5, lines[4], "das Haus", "unexplained")
    ours, theirs = rescore(bundle.model, bundle.tokenizer.encode([lines[4]] * 2), [bundle.tokenizer.encode([differing["nmt"]])[0], other])
    alpha_lengths = [(len(ids) + 1) ** 0.6 for ids in (bundle.tokenizer.encode([differing["nmt"]])[0], other)]
    assert differing["margin"] == pytest.approx(ours.plain / alpha_lengths[0] - theirs.plain / alpha_lengths[1], abs=1e-5)
    console = Console(width=100, file=io.StringIO())
    for part in tables(proof):
        console.print(part, markup=False)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(words in told for words in (lines[4], differing["nmt"], "das Haus", "19 (95.00 %)", "unexplained"))


def test_a_wrong_score_fails_float32_though_the_lines_are_the_same(bundle: Bundle, sentences: list[str]) -> None:
    proof = proof_of(bundle, sentences[:20], lambda line, found: replace(found, score=found.score + 0.01 * (line == sentences[7])))
    assert proof["identical_share"] == 1 and proof["largest_score_difference"] == pytest.approx(0.01, abs=1e-5)
    assert failures(proof) == ["a score differs by 0.01, which may be 0.001"] and not proof["proven"]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_score_that_is_no_number_fails(precision: str, bundle: Bundle, sentences: list[str]) -> None:
    proof = proof_of(bundle, sentences[:9], at(sentences[5], score=float("nan")), precision)
    assert failures(proof) == ["a score is no number"] and not proof["proven"]


def test_a_line_cut_by_the_engine_is_told_and_not_counted(bundle: Bundle, sentences: list[str]) -> None:
    proof = proof_of(bundle, sentences[:20], at(sentences[7], text="x", finished=False))
    assert (proof["proven"], proof["cut"], proof["identical"], proof["identical_share"]) == (True, 1, 19, 1.0)
    assert [one["why"] for one in proof["differing"]] == ["cut"]
    nothing = proof_of(bundle, sentences[:20], lambda line, found: replace(found, finished=False))
    assert not nothing["proven"] and "no line came to its end" in failures(nothing)[0]


def test_a_line_may_not_grow_beyond_its_own_greatest_length(bundle: Bundle, sentences: list[str]) -> None:
    """In a call with a longer line an engine goes on beyond it."""
    [source] = bundle.tokenizer.encode(["the"])
    for room, why in ((50, "unexplained"), (51, "cut")):
        ids = [70] * (len(source) + room)
        change = at("the", text=bundle.tokenizer.decode(ids), ids=ids, score=0.0)
        [differing] = [one for one in proof_of(bundle, ["the", *sentences[:3]], change)["differing"] if one["source"] == "the"]
        assert (differing["engine"], differing["why"]) == (bundle.tokenizer.decode([70] * (len(source) + 50)), why)


def test_text_read_as_other_tokens_is_told(bundle: Bundle, sentences: list[str]) -> None:
    proof = proof_of(bundle, sentences[:20], at(sentences[7], source=[5], text="x", score=1.0))
    assert (proof["tokenized_otherwise"], proof["identical"]) == (1, 19)
    assert [one["why"] for one in proof["differing"]] == ["tokenized otherwise"]
    assert proof["largest_score_difference"] == 0


def summary(precision: str, share: float = 1.0, loss: float = 0.0) -> dict[str, Any]:
    bleu = {"nmt": {"score": 25.0}, "engine": {"score": round(25.0 - loss, 2)}}
    return {"precision": precision, "compared": 1000, "cut": 0, "identical_share": share, "largest_score_difference": 0.0, "bleu": bleu}


@pytest.mark.parametrize(("loss", "fails"), [(-1.0, False), (0.3, False), (0.31, True)])
def test_quantized_weights_may_cost_three_tenths_of_a_bleu(loss: float, fails: bool) -> None:
    assert bool(failures(summary("int8", share=0.5, loss=loss))) == fails


@pytest.mark.parametrize(("share", "fails"), [(1.0, False), (0.995, False), (0.9949, True)])
def test_float32_needs_199_of_200_lines(share: float, fails: bool) -> None:
    assert bool(failures(summary("float32", share=share))) == fails
