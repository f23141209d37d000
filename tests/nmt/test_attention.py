"""The attention map is the attention that the model uses."""

from pathlib import Path

import pytest
import torch

from nmt.attention import attention_weights
from nmt.batches import padded
from nmt.bundle import load_bundle
from nmt.model import CrossAttention, ModelConfig, Transformer
from nmt.symbols import BOS

SHAPE = {"layers": 2, "d_model": 12, "d_ff": 16, "heads": 3, "d_k": 4, "d_v": 5, "dropout": 0.3, "positions": "sinusoidal"}


def test_rows_are_shares_of_the_source_for_every_token_and_layer() -> None:
    torch.manual_seed(1)
    model = Transformer(ModelConfig.model_validate(SHAPE), 20)
    layers = attention_weights(model, [5, 6, 7], [8, 9])
    assert [layer.shape for layer in layers] == [(3, 4), (3, 4)]
    for layer in layers:
        assert torch.all(layer > 0) and torch.allclose(layer.sum(1), torch.ones(3))


def test_the_weights_are_those_by_which_the_model_adds_up_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every value is the same in all heads, attention's result is the map times the values."""
    torch.manual_seed(2)
    model = Transformer(ModelConfig.model_validate(SHAPE), 20).eval()
    heads: list[torch.Tensor] = []

    def kept(
        self: CrossAttention, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        value = torch.eye(keys.size(2)).expand(*keys.shape[:2], -1, -1)  # the value of source position s is the s-th unit vector
        heads.append(torch.nn.functional.scaled_dot_product_attention(queries, keys, value))
        return super(CrossAttention, self).attend(queries, keys, values, mask)

    source, target = [5, 6, 7, 4], [8, 9, 10]
    shown = attention_weights(model, source, target)
    monkeypatch.setattr(CrossAttention, "attend", kept, raising=False)
    tokens = padded([target])
    with torch.no_grad():
        model(padded([source]), torch.cat([torch.full((1, 1), BOS), tokens[:, :-1]], 1))
    assert len(heads) == len(shown) == 2
    for used, layer in zip(heads, shown, strict=True):
        assert torch.allclose(used[0].mean(0), layer, atol=1e-6)


def test_an_empty_side_is_its_end_symbol_alone(model_folder: Path) -> None:
    [layer] = attention_weights(load_bundle(model_folder).model, [], [])
    assert layer.tolist() == [[1.0]]
