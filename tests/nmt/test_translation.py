"""Text in, text out (§6.1), with a small random model and a real tokenizer: what is translated must not depend on what else is."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import nmt.model
import nmt.translation
from nmt.bundle import Bundle, load_bundle
from nmt.decoder import CachedDecoder
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.progress import Progress
from nmt.search import DecodeConfig
from nmt.symbols import EOS
from nmt.tokenizer import Tokenizer
from nmt.translation import Translation, Translator, near_ties

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


def test_the_translations_of_the_fixture_differ_so_that_comparing_them_means_something(expected: list[list[Translation]]) -> None:
    best = [result[0] for result in expected if result]
    assert len({t.text for t in best}) > len(best) / 2
    assert {t.finished for t in best} == {True, False}


@pytest.mark.parametrize("batch_tokens", [1, 30, 100, 100_000])
def test_translations_do_not_depend_on_the_batch_size(
    batch_tokens: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]
) -> None:
    assert translator(bundle, batch_tokens).translate(lines, 4) == expected


@pytest.mark.parametrize("most", [1, 200_000])
def test_translations_do_not_depend_on_the_memory_that_a_batch_may_take(
    most: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.translation, "MOST_BYTES", most)
    free = translator(bundle, 100_000)
    lengths = [len(source) for source in free.tokenizer.encode(lines)]
    sizes = [len(batch) for batch in free._batches(range(len(lines)), lengths, 4)]
    assert sum(sizes) == len(lines) and (max(sizes) == 1 if most == 1 else 1 < max(sizes) < 20)
    assert free.translate(lines, 4) == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_translations_do_not_depend_on_the_order(seed: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]) -> None:
    order = random.Random(seed).sample(range(len(lines)), len(lines))
    assert translator(bundle).translate([lines[i] for i in order], 4) == [expected[i] for i in order]


@pytest.mark.parametrize("nbest", [1, 2])
def test_the_best_does_not_depend_on_how_many_are_asked_for(
    nbest: int, bundle: Bundle, lines: list[str], expected: list[list[Translation]]
) -> None:
    found = translator(bundle).translate(lines, nbest)
    assert [result[:1] for result in found] == [result[:1] for result in expected]
    assert {len(result) for result in found} == {0, nbest}


def test_as_many_lines_come_out_as_go_in(tokenizer_file: Path, lines: list[str], sentences: list[str]) -> None:
    inputs = [*lines, *sentences[40:]][:70]
    quick = translator(saying(Tokenizer.load(tokenizer_file), EOS), 60, beam_size=1)
    blank = [text in BLANK for text in inputs]
    assert {True, False} == set(blank)
    for count in range(len(inputs) + 1):
        progress = Progress("test", count, "lines", visible=False, work=0.0)
        found = quick.translate(inputs[:count], report=progress.advance_by)
        assert [not result for result in found] == blank[:count]
        assert progress.done == count
        assert progress.worked == pytest.approx(sum(map(len, inputs[:count])))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("beam", "heads", "d_k"), [(1, 3, 16), (4, 3, 16), (16, 1, 48)])
def test_a_line_alone_has_the_translations_and_scores_it_has_among_others(
    precision: str, beam: int, heads: int, d_k: int, tokenizer_file: Path, sentences: list[str]
) -> None:
    """With a model of several layers and an ordinary width, in all precisions, with one thread and more: not one bit differs."""
    tokenizer = Tokenizer.load(tokenizer_file)
    shape = ModelConfig(layers=2, d_model=48, d_ff=1200, heads=heads, d_k=d_k, d_v=d_k, dropout=0.0, positions="sinusoidal")
    torch.manual_seed(3)
    model = translator(Bundle(Transformer(shape, tokenizer.vocab_size), tokenizer, {}), 400, precision=precision, beam_size=beam)
    among = model.translate(sentences[:30], beam)
    assert [model.translate([line], beam)[0] for line in sentences[:30:3]] == among[::3]
    threads = torch.get_num_threads()
    try:
        for number in {1, 2, 3} - {threads}:
            torch.set_num_threads(number)
            assert model.translate(sentences[29::-1], beam) == among[::-1]
    finally:
        torch.set_num_threads(threads)


def test_an_ensemble_of_one_model_and_itself_is_that_model(bundle: Bundle, lines: list[str], expected: list[list[Translation]]) -> None:
    twice = Translator([bundle, bundle], config(), torch.device("cpu"), 200).translate(lines)
    assert [result[0].text for result in twice if result] == [result[0].text for result in expected if result]


def test_models_of_different_tokenizers_do_not_translate_together(bundle: Bundle, learned_model_folder: Path) -> None:
    other = load_bundle(learned_model_folder)
    Translator([bundle, other], config(), torch.device("cpu"), 200)
    other.tokenizer.sha256 = "0" * 64
    with pytest.raises(UserError, match="different tokenizers"):
        Translator([bundle, other], config(), torch.device("cpu"), 200)


def test_translations_begin_with_the_prefix_and_their_score_counts_it(bundle: Bundle, expected: list[list[Translation]]) -> None:
    lines = ["the house is old.", "", "a cat"]
    free = translator(bundle).translate(lines)
    for result, unforced in zip(translator(bundle).translate(lines, 4, prefix="das Haus"), free, strict=True):
        assert bool(result) == bool(unforced)
        assert all(t.text.startswith("das Haus") and t.log_prob < unforced[0].log_prob for t in result)
    own = free[0][0].text
    whole = translator(bundle, max_length_offset=0).translate(lines[:1], prefix=own)[0][0]
    assert whole.text.startswith(own)


def test_what_is_drawn_depends_on_the_seed_and_the_line_alone(bundle: Bundle, lines: list[str]) -> None:
    first = translator(bundle).translate(lines, seed=5)
    assert translator(bundle, 30).translate(lines[::-1], seed=5) == first[::-1]
    assert [bool(result) for result in first] == [text not in BLANK for text in lines]
    again = translator(bundle).translate(["the house", "the house"], 3, seed=6)
    assert again[0] == again[1] and len({t.text for t in again[0]}) == 3
    assert translator(bundle).translate(["the house"], seed=7)[0] != again[0][:1]


def test_sources_are_padded_to_few_widths_and_long_ones_by_little() -> None:
    widths = [nmt.translation._width(tokens) for tokens in range(1, 1025)]
    for tokens, width in enumerate(widths, start=1):
        assert tokens <= width < max(9, 2 * tokens if tokens <= 128 else 1.25 * tokens) and width % 8 == 0
    assert widths[-1] == 1024 and len(set(widths)) <= 17


def test_near_ties_are_lines_whose_second_best_is_as_good_to_rounding() -> None:
    scores = [[-1.0, -1.5], [-1.0, -1.000001], [-2.0], [], [-3.0, -3.0, -4.0]]
    assert near_ties([[Translation("", score, score, 1, True) for score in found] for found in scores]) == 2


def test_the_time_left_is_foreseen_within_a_factor_of_two_however_unequal_the_lines(
    tokenizer_file: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on with every step by 1 and 1 for each 40 rows (about what a processor does, at beam 4)."""
    rng, clock = random.Random(4), [0.0]
    lines = [" ".join(rng.choices(sentences, k=rng.choice([1, 1, 1, 1, 2, 4, 9]))) for _ in range(300)]
    copying = translator(saying(Tokenizer.load(tokenizer_file), 270), 6000, max_length_offset=0, beam_size=1)
    step = nmt.translation.CachedDecoder.__call__

    def timed(self: CachedDecoder, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        clock[0] += 1 + len(tokens) / 40
        return step(self, tokens, parents)

    monkeypatch.setattr(nmt.translation.CachedDecoder, "__call__", timed)
    progress = Progress("test", len(lines), "lines", visible=False, work=sum(map(len, lines)))
    told: list[tuple[float, float, float]] = []  # time, share of the work done, of the lines

    def report(count: int, work: float) -> None:
        progress.advance_by(count, work)
        told.append((clock[0], progress.worked / (progress.work or 1), progress.done / len(lines)))

    copying.translate(lines, report=report)  # as many tokens as it reads, whatever they are
    whole = clock[0]
    for now, worked, _ in told:
        if whole / 20 < now < whole * 0.9:
            assert 0.5 < now * (1 - worked) / worked / (whole - now) < 2
    assert any(now > whole / 3 and done < 1 / 10 for now, _, done in told)  # counting lines would not do


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
    long = "the house " * 290
    assert len(tokenizer.encode([long])[0]) > 2000
    [[result], [short]] = translator(saying(tokenizer, EOS)).translate([long, "a"])
    assert (result.text, result.finished) == (short.text, True)


def test_a_line_that_would_take_all_memory_is_an_error_that_names_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.translation, "LONGEST", 20)
    with pytest.raises(UserError, match=r"^text, line 8: \d+ tokens, but a line may have 20: cut the line$"):
        translator(bundle).translate(["the tree", "the tree " * 30], name="text", first=7)


def test_a_source_beyond_learned_positions_is_an_error_that_names_the_line(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nmt.model, nmt.translation):
        monkeypatch.setattr(module, "LEARNED_POSITIONS", 16)
    tokenizer = Tokenizer.load(tokenizer_file)
    shape = ModelConfig(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.0, positions="learned")
    torch.manual_seed(1)
    learned = translator(Bundle(Transformer(shape, tokenizer.vocab_size), tokenizer, {}), max_length_offset=50)
    for tokens in range(1, 18):
        line = next(text for words in range(1, 30) for text in [" ".join("x" * words)] if len(tokenizer.encode([text])[0]) >= tokens)
        tokens = len(tokenizer.encode([line])[0])
        if tokens < 16:
            [[result]] = learned.translate([line])
            assert result.tokens <= 16
        else:
            with pytest.raises(UserError, match=rf"^talk\.en, line 8: {tokens} tokens, but .* only 15: cut the line$"):
                learned.translate(["x", line], name="talk.en", first=7)
            assert learned.translate([" " * 99]) == [[]]
