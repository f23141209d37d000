"""Decoding token by token from caches held against the whole model's teacher-forced pass (§3.1: auto-regressive)."""

import random
import shutil
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import pytest
import torch
from torch import Tensor

import nmt.products
from nmt.batches import padded
from nmt.decoder import CachedDecoder, Ensemble
from nmt.model import ModelConfig, Transformer
from nmt.products import Decoding
from nmt.search import DecodeConfig, beam_search
from nmt.symbols import BOS, EOS

VOCABULARY = 29
CONFIG = ModelConfig(layers=2, d_model=8, d_ff=12, heads=2, d_k=5, d_v=3, dropout=0.1, positions="sinusoidal")
SOURCES = [[5, 6, 7, 8, 9], [10], [11, 12, 13, 4, 4, 4, 17], [6, 6]]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def built(kind: torch.dtype, **changed: object) -> Transformer:
    torch.manual_seed(9)
    model = Transformer(ModelConfig.model_validate({**CONFIG.model_dump(), **changed}), VOCABULARY).to(kind).eval()
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(torch.randn_like(weight) / 4)
    return model


def teacher_forced(model: Transformer, source: list[int], tokens: list[int]) -> Tensor:
    """Log probabilities [T, V] of the token behind each of `tokens`, the sentence being alone."""
    return model.logits(model(padded([source]), torch.tensor([tokens]))).log_softmax(-1)[0]


def prepared(model: Transformer, precision: Literal["float32", "bfloat16", "int8"] = "float32") -> Decoding:
    return Decoding(model, precision, torch.device("cpu"))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("seed", [1, 3, 16])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sizes", [[4], [1, 3], [2, 1, 1], [1, 1, 1, 1]])
def test_every_step_is_the_teacher_forced_one_whatever_becomes_of_the_rows(positions: str, seed: int, beams: int, sizes: list[int]) -> None:
    """The sources being in so many tensors of different widths."""
    model = built(torch.float32, positions=positions)
    assert_teacher_forced(model, CachedDecoder(prepared(model), groups(sizes), beams), beams, random.Random(seed))


def groups(sizes: list[int]) -> list[Tensor]:
    """SOURCES in so many tensors, of different widths."""
    sources = iter(SOURCES)
    return [padded(list(islice(sources, size)), lambda longest, wider=5 * n: longest + wider) for n, size in enumerate(sizes)]


class AsOnGpus(torch.nn.Linear):
    """Weights as they are on a GPU, which is what torch.compile knows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: torch.dtype, result: torch.dtype | None = None) -> None:
        super().__init__(weight.size(1), weight.size(0), bias is not None, dtype=kind)
        self.weight.copy_(weight)
        if bias is not None:
            self.bias.copy_(bias)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
@pytest.mark.filterwarnings("ignore")  # torch.compile warns itself, and silences that
def test_compiled_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of however many lengths the sources are; more kinds of steps than torch.compile likes by itself."""
    monkeypatch.setattr(nmt.products, "Packed", AsOnGpus)
    model = built(torch.float32)
    decoding = Decoding(model, "float32", torch.device("cpu"), compiled=True)
    for sizes in ([4], [2, 2], [3, 1], [1, 2, 1], [1, 1, 1, 1]):
        for beams in (3, 1):
            assert_teacher_forced(model, CachedDecoder(decoding, groups(sizes), beams), beams, random.Random(1))


def assert_teacher_forced(model: Transformer, decoder: CachedDecoder, beams: int, rng: random.Random) -> None:
    """Rows are multiplied, shuffled and dropped, sentences end at once or later, and the caches grow several times."""
    rows = [(sentence, [BOS]) for sentence in range(len(SOURCES))]
    parents = list(range(len(rows)))
    living, width = list(range(len(SOURCES))), 1  # sentences in the order of their rows, rows of each
    leaving = {0: 1, 9: 0, 14: 3}  # step: sentence
    for step in range(20):
        found = decoder(torch.tensor([tokens[-1] for _, tokens in rows]), torch.tensor(parents))
        expected = torch.stack([teacher_forced(model, SOURCES[sentence], tokens)[-1] for sentence, tokens in rows])
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        places = list(range(len(living)))
        if step in leaving:  # the last one takes its place
            hole, last = living.index(leaving[step]), places.pop()
            if hole != last:
                places[hole] = last
        living = [living[place] for place in places]
        parents = [place * width + rng.randrange(width) for place in places for _ in range(beams)]
        rows = [(rows[parent][0], [*rows[parent][1], rng.randrange(4, VOCABULARY)]) for parent in parents]
        width = beams
    assert {sentence for sentence, _ in rows} == {2}


def test_an_ensemble_has_the_mean_of_its_members_probabilities() -> None:
    models = [built(torch.float32), built(torch.float32, layers=1)]
    decoders = [CachedDecoder(prepared(model), [padded(SOURCES)], 2) for model in models]
    tokens, parents = torch.full((4,), BOS), torch.arange(4)
    mean = sum(model.logits(model(padded(SOURCES), tokens[:, None]))[:, 0].softmax(-1) for model in models) / 2
    torch.testing.assert_close(Ensemble(decoders)(tokens, parents).exp(), mean)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_log_probability_of_each_hypothesis_is_its_teacher_forced_sum(beam: int) -> None:
    config = DecodeConfig(beam_size=beam, length_penalty=0.6, max_length_offset=12, stop="exact", precision="float32")
    finished = set()
    for strength in (1, 3, 9, 27):  # of the end symbol, so that some hypotheses end before their limit and others do not
        model = built(torch.float32)
        model.embedding.weight[EOS] *= strength
        decoder = CachedDecoder(prepared(model), [padded(SOURCES)], beam)
        results = beam_search(decoder, [len(source) + 12 for source in SOURCES], config, beam)
        for source, found in zip(SOURCES, results, strict=True):
            for hypothesis in found:
                scores = teacher_forced(model, source, [BOS, *hypothesis.ids])
                expected = scores.gather(1, torch.tensor([*hypothesis.ids, EOS])[:, None]).sum().item()
                assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
                finished.add(hypothesis.finished)
    assert finished == {True, False}


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_give_log_probabilities_in_float32(precision: Literal["bfloat16", "int8"]) -> None:
    decoder = CachedDecoder(prepared(built(torch.float32), precision), [padded(SOURCES)], 4)
    found = decoder(torch.full((4,), BOS), torch.arange(4))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4))


def test_keys_and_values_of_a_source_are_computed_once_for_all_beams() -> None:
    decoder = CachedDecoder(prepared(built(torch.float32)), [padded(SOURCES)], 5)
    keys = decoder.memory[0].keys.clone()
    decoder(torch.full((4,), BOS), torch.arange(4))
    decoder(torch.full((20,), 7), torch.arange(4).repeat_interleave(5))
    assert torch.equal(decoder.memory[0].keys, keys)
    decoder(torch.full((10,), 8), torch.arange(15, 5, -1))  # the first two sentences have ended
    assert {place: keys[:, source].tolist() for place, source in enumerate([3, 2])} == {
        place: decoder.memory[0].keys[:, slot].tolist() for slot, place in enumerate(decoder.memory[0].places)
    }


def test_the_caches_have_a_little_more_room_than_they_need_and_grow_seldom() -> None:
    beams, sizes = 3, []
    decoder = CachedDecoder(prepared(built(torch.float32)), [padded(SOURCES)], beams)
    tokens, parents = torch.full((4,), BOS), torch.arange(4)
    for step in range(1, 200):
        decoder(tokens, parents)
        tokens = torch.full((4 * beams,), 7)
        parents = torch.arange(4).repeat_interleave(beams) if step == 1 else torch.arange(4 * beams)
        sizes.append(decoder.mask.size(2) // beams)
        assert decoder.own[0].size(4) == decoder.own[1].size(3) == decoder.mask.size(2)
        assert step <= sizes[-1] <= max(step + 7, 1.125 * step + 7)
    assert len(set(sizes)) <= 24


def test_a_long_source_alone_is_cached_once_where_a_short_one_needs_copies_for_its_products() -> None:
    decoding = prepared(built(torch.float32))
    assert CachedDecoder(decoding, [padded([[5] * 2000])], 20).memory[0].keys.size(1) == 1
    assert CachedDecoder(decoding, [padded([[5]])], 20).memory[0].keys.size(1) > 16
