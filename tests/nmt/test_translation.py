"""Text in, text out (§6.1), with a small random model and a real tokenizer: what is translated must not depend on what else is."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import nmt.model
import nmt.translation
from nmt.bundle import Bundle, load_bundle
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.search import DecodeConfig
from nmt.symbols import EOS
from nmt.tokenizer import Tokenizer
from nmt.translation import Translation, Translator

BLANK = ["", " ", "\t", "\u00a0\u00a0", "\u200b", " \u2003\u200b\ufeff", "\u2028", "\x85", "\x0b\x0c", "\r"]
ODD = ["😀 house", "дом", "中文", "x\u2028y", "a\u0301", "\u1f600", "<s> </s> <unk> <0x0A>", "▁the", "…", "\ue000"]


def config(**changed: Any) -> DecodeConfig:
    common = {"beam_size": 4, "length_penalty": 0.6, "max_length_offset": 4, "stop": "exact", "precision": "float32"}
    return DecodeConfig.model_validate({**common, **changed})


def translator(bundle: Bundle, batch_tokens: int = 200, **changed: Any) -> Translator:
    return Translator(bundle, config(**changed), torch.device("cpu"), batch_tokens)


@pytest.fixture(scope="module")
def bundle(model_folder: Path) -> Bundle:
    return load_bundle(model_folder)


@pytest.fixture(scope="module")
def lines(sentences: list[str]) -> list[str]:
    """40 sentences, blank and odd lines among them."""
    mixed = [*sentences[:40], *BLANK, *ODD]
    random.Random(3).shuffle(mixed)
    return mixed


@pytest.fixture(scope="module")
def expected(bundle: Bundle, lines: list[str]) -> list[list[Translation]]:
    """Each line translated by itself."""
    return [translator(bundle).translate([line], 4)[0] for line in lines]


def saying(tokenizer: Tokenizer, *ids: int) -> Bundle:
    """A model that finds each of the tokens `ids` far more likely than any other, whatever it has read and said."""
    shape = ModelConfig(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.0, positions="sinusoidal")
    model = Transformer(shape, tokenizer.vocab_size)
    with torch.no_grad():
        last = model.decoder[-1].feed_forward_norm
        last.weight.zero_()
        last.bias.copy_(
            torch.tensor([1.0, *[0.0] * 7])
        )  # the state at every place, so a token's logit is the first number of its embedding
        model.embedding.weight[:, 0] = 0
        model.embedding.weight[list(ids), 0] = 20
    return Bundle(model, tokenizer, {})


def assert_same(found: list[list[Translation]], expected: list[list[Translation]]) -> None:
    assert [[t.text for t in result] for result in found] == [[t.text for t in result] for result in expected]
    scores, expected_scores = ([t.score for result in results for t in result] for results in (found, expected))
    assert scores == pytest.approx(expected_scores, abs=1e-4)  # products of other shapes round otherwise


def test_the_translations_of_the_fixture_differ_so_that_comparing_them_means_something(expected: list[list[Translation]]) -> None:
    best = [result[0] for result in expected if result]
    assert len({t.text for t in best}) > len(best) / 2
    assert {t.finished for t in best} == {True, False}


@pytest.mark.parametrize("batch_tokens", [1, 30, 100, 100_000])
def test_translations_do_not_depend_on_the_batch_size(
    batch_tokens: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]
) -> None:
    assert_same(translator(bundle, batch_tokens).translate(lines, 4), expected)


@pytest.mark.parametrize("seed", [1, 2])
def test_translations_do_not_depend_on_the_order(seed: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]) -> None:
    order = random.Random(seed).sample(range(len(lines)), len(lines))
    assert_same(translator(bundle).translate([lines[i] for i in order], 4), [expected[i] for i in order])


@pytest.mark.parametrize("nbest", [1, 2])
def test_the_best_does_not_depend_on_how_many_are_asked_for(
    nbest: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]
) -> None:
    found = translator(bundle).translate(lines, nbest)
    assert_same([result[:1] for result in found], [result[:1] for result in expected])
    assert {len(result) for result in found} == {0, nbest}


@pytest.mark.parametrize("most", [20, pytest.param(70, marks=pytest.mark.slow)])
def test_as_many_lines_come_out_as_go_in(most: int, bundle: Bundle, lines: list[str], sentences: list[str]) -> None:
    inputs = [*lines, *sentences[40:]][:most]
    quick = translator(bundle, 60, beam_size=1, max_length_offset=0)
    whole = quick.translate(inputs)
    assert len(whole) == most
    for count in range(most):
        done: list[int] = []
        assert_same(quick.translate(inputs[:count], report=done.append), whole[:count])
        assert sum(done) == count


def test_blank_lines_stay_blank_and_the_model_is_not_asked(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.translation, "CachedDecoder", None)
    assert translator(bundle).translate(BLANK, 4) == [[]] * len(BLANK)
    with pytest.raises(TypeError):
        translator(bundle).translate(["a"])


def test_every_translation_is_one_line_of_plain_text(tokenizer_file: Path) -> None:
    """A model can spell line feed, carriage return and NUL with its byte pieces: no reader of the file may stumble over them."""
    tokenizer = Tokenizer.load(tokenizer_file)
    [word] = tokenizer.encode(["the"])
    byte = {piece: id_ for id_, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))) if piece.startswith("<0x")}
    for piece in ("<0x0A>", "<0x0D>", "<0x00>"):
        results = translator(saying(tokenizer, byte[piece], *word)).translate(["house"], 4)[0]
        assert any(" " in t.text for t in results)
        assert not any(set("\n\r\0") & set(t.text) for t in results)
    [[broken]] = translator(saying(tokenizer, byte["<0xC3>"]), max_length_offset=0).translate(["house"])
    assert set(broken.text) == {"\ufffd"}  # half a character


def test_a_model_that_never_ends_is_cut_at_each_lines_own_length(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_file)
    lines = ["the house is old a cat sees the tree and the red light das Haus", "a", "Baum"]
    results = translator(saying(tokenizer, 270), max_length_offset=5).translate(lines)
    for line, [result] in zip(lines, results, strict=True):
        assert result.tokens == len(tokenizer.encode([line])[0]) + 5 + 1  # and the end symbol
        assert not result.finished


def test_score_and_log_probability_belong_together(expected: list[list[Translation]]) -> None:
    for result in expected:
        for t in result:
            assert t.score == pytest.approx(t.log_prob / ((5 + t.tokens) / 6) ** 0.6)
        assert [t.score for t in result] == sorted((t.score for t in result), reverse=True)


def test_a_source_of_thousands_of_tokens_is_translated(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_file)
    long = "the house " * 1000
    assert len(tokenizer.encode([long])[0]) > 2000
    [[result], [short]] = translator(saying(tokenizer, EOS)).translate([long, "a"])
    assert (result.text, result.finished) == (short.text, True)


def test_a_source_beyond_learned_positions_is_an_error_that_names_the_line(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nmt.model, nmt.translation):
        monkeypatch.setattr(module, "LEARNED_POSITIONS", 12)
    tokenizer = Tokenizer.load(tokenizer_file)
    shape = ModelConfig(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.0, positions="learned")
    torch.manual_seed(1)
    learned = translator(Bundle(Transformer(shape, tokenizer.vocab_size), tokenizer, {}), max_length_offset=50)
    for tokens in range(1, 14):
        line = next(text for words in range(1, 30) for text in [" ".join("x" * words)] if len(tokenizer.encode([text])[0]) >= tokens)
        tokens = len(tokenizer.encode([line])[0])
        if tokens < 12:
            [[result]] = learned.translate([line])
            assert result.tokens <= 12
        else:
            with pytest.raises(UserError, match=rf"^talk\.en, line 8: {tokens} tokens, but .* only 11: cut the line$"):
                learned.translate(["x", line], name="talk.en", first=7)
            assert learned.translate([" " * 99]) == [[]]


def test_bfloat16_translates_too(model_folder: Path, sentences: list[str]) -> None:
    results = translator(load_bundle(model_folder), precision="bfloat16").translate(sentences[:3])
    assert all(len(result) == 1 and result[0].score < 0 for result in results)
