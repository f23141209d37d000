"""nmt.validation: the loss that another implementation computes, on all pairs, without dropout."""

import math
from pathlib import Path

import pytest
import torch

from nmt import validation
from nmt.batches import collate
from nmt.model import ModelConfig, Transformer
from nmt.validation import HeldOutLoss, held_out_loss, perplexity
from tests.copy_task import MODEL, VOCAB, copies, write_corpus

CPU = torch.device("cpu")


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(3)
    return Transformer(ModelConfig(**{**MODEL, "dropout": 0.5}), VOCAB)


def reference(model: Transformer, count: int) -> tuple[float, int]:
    """Summed negative log likelihood and tokens, pair by pair with torch's own cross entropy."""
    model.eval()
    nll, tokens = 0.0, 0
    with torch.no_grad():
        for pair in copies(count, 2):
            batch = collate([pair])
            logits = model.logits(model(batch.src, batch.tgt_in))
            nll += torch.nn.functional.cross_entropy(logits[0].double(), batch.tgt_out[0], reduction="sum").item()
            tokens += batch.tgt_out.numel()
    return nll, tokens


@pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
def test_the_loss_is_the_cross_entropy_of_every_pair_for_any_batch(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_tokens: int
) -> None:
    monkeypatch.setattr(validation, "BATCH_TOKENS", batch_tokens)
    write_corpus(tmp_path, valid=40)
    nll, tokens = reference(model, 40)
    found = held_out_loss(model, tmp_path / "valid", CPU, "float32")
    assert found.tokens == tokens
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert found.loss == pytest.approx(nll / tokens, rel=1e-5) and found.perplexity == pytest.approx(math.exp(nll / tokens), rel=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_measuring_changes_nothing_in_the_model(model: Transformer, tmp_path: Path, training: bool) -> None:
    write_corpus(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train(training)
    assert held_out_loss(model, tmp_path / "valid", CPU, "float32") == held_out_loss(model, tmp_path / "valid", CPU, "float32")
    assert model.training == training and all(module.training == training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_knows_nothing_has_the_perplexity_of_the_vocabulary(model: Transformer, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    torch.nn.init.zeros_(model.embedding.weight)  # all logits are 0
    assert held_out_loss(model, tmp_path / "valid", CPU, "float32").perplexity == pytest.approx(VOCAB, rel=1e-5)


def test_perplexity_is_the_exponential_and_finite_however_bad_the_loss() -> None:
    assert HeldOutLoss(nll=6.0, tokens=3).perplexity == pytest.approx(math.e**2)
    assert math.isfinite(perplexity(1e9)) and perplexity(1e9) >= perplexity(699)
    assert math.isnan(perplexity(math.nan))
