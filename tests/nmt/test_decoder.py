"""Decoding token by token from caches held against the whole model's teacher-forced pass (§3.1: auto-regressive)."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import nmt.decoder
from nmt.batches import padded
from nmt.decoder import CachedDecoder
from nmt.model import ModelConfig, Transformer
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


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("capacity", [1, 3, 16])
def test_every_step_is_the_teacher_forced_one_whatever_becomes_of_the_rows(
    kind: torch.dtype, tolerance: float, positions: str, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are multiplied, shuffled and dropped, sentences end, the beam changes its width and the caches grow several times."""
    monkeypatch.setattr(nmt.decoder, "FIRST_CAPACITY", capacity)
    model, rng = built(kind, positions=positions), random.Random(capacity)
    decoder = CachedDecoder(model, padded(SOURCES))
    rows = [(sentence, [BOS]) for sentence in range(len(SOURCES))]
    parents = list(range(len(rows)))
    leaving = {5: 1, 9: 3, 14: 0}  # step: sentence
    for step in range(20):
        found = decoder(torch.tensor([tokens[-1] for _, tokens in rows]), torch.tensor(parents))
        expected = torch.stack([teacher_forced(model, SOURCES[sentence], tokens)[-1] for sentence, tokens in rows])
        assert found.dtype == kind
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
        beam = (3, 3, 2, 3, 1, 2)[step % 6]
        living = sorted({sentence for sentence, _ in rows} - {leaving.get(step)})
        parents = [rng.choice([row for row, (of, _) in enumerate(rows) if of == sentence]) for sentence in living for _ in range(beam)]
        rows = [(rows[parent][0], [*rows[parent][1], rng.randrange(4, VOCABULARY)]) for parent in parents]
    assert {sentence for sentence, _ in rows} == {2}


@pytest.mark.parametrize("beam", [1, 4])
def test_the_log_probability_of_each_hypothesis_is_its_teacher_forced_sum(beam: int) -> None:
    config = DecodeConfig(beam_size=beam, length_penalty=0.6, max_length_offset=12, stop="exact", precision="float32")
    finished = set()
    for strength in (1, 3, 9, 27):  # of the end symbol, so that some hypotheses end before their limit and others do not
        model = built(torch.float32)
        model.embedding.weight[EOS] *= strength
        results = beam_search(CachedDecoder(model, padded(SOURCES)), [len(source) + 12 for source in SOURCES], config, beam)
        for source, found in zip(SOURCES, results, strict=True):
            for hypothesis in found:
                scores = teacher_forced(model, source, [BOS, *hypothesis.ids])
                expected = scores.gather(1, torch.tensor([*hypothesis.ids, EOS])[:, None]).sum().item()
                assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
                finished.add(hypothesis.finished)
    assert finished == {True, False}


def test_bfloat16_gives_log_probabilities_in_float32() -> None:
    decoder = CachedDecoder(built(torch.bfloat16), padded(SOURCES))
    found = decoder(torch.full((4,), BOS), torch.arange(4))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4))


def test_keys_and_values_of_a_source_are_computed_once_for_all_beams() -> None:
    decoder = CachedDecoder(built(torch.float32), padded(SOURCES))
    before = decoder.memory
    decoder(torch.full((4,), BOS), torch.arange(4))
    decoder(torch.full((20,), 7), torch.arange(4).repeat_interleave(5))
    assert decoder.memory is before and before[0][0].size(0) == 4
    decoder(torch.full((10,), 8), torch.arange(5, 15))  # the first and the last sentence have ended
    assert decoder.memory[0][0].size(0) == 2
    assert torch.equal(decoder.memory[0][0], before[0][0][1:3])
