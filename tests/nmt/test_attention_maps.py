"""The weights that are drawn are those with which the model computes, held against PyTorch's attention (§3.2)."""

from pathlib import Path

import pytest
import torch

import nmt.model
from nmt.attention_maps import attention_map, attention_maps, cross_attention
from nmt.bundle import load_bundle
from nmt.model import DecoderLayer, EncoderLayer
from tests.nmt.test_model import ODD, SQUARE, SRC, TGT, assert_equal, built, copy_attention

SOURCE, TARGET = SRC[:1], TGT[:1]


def test_weights_are_those_of_pytorchs_attention_with_the_same_matrices() -> None:
    model = built(SQUARE).eval()
    layer, last = model.encoder[0], model.decoder[0]
    assert isinstance(layer, EncoderLayer) and isinstance(last, DecoderLayer)
    theirs = torch.nn.MultiheadAttention(SQUARE.d_model, SQUARE.heads, batch_first=True).double()
    found = attention_maps(model, SOURCE, TARGET)
    x = model.embed(SOURCE, 0, "src").transpose(0, 1)
    copy_attention(layer.self_attention, theirs)
    _, expected = theirs(x, x, x, average_attn_weights=False)
    assert_equal(found.encoder[0].double(), expected[0].float().double())
    x = model.embed(TARGET, 0, "tgt").transpose(0, 1)
    copy_attention(last.self_attention, theirs)
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    _, expected = theirs(x, x, x, attn_mask=future, average_attn_weights=False)
    assert_equal(found.decoder[0].double(), expected[0].float().double())


def test_layers_get_what_the_model_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attention that the walk asks for is one that the model's own forward pass asks for, and the other way round."""
    model, asked = built(ODD).eval(), []
    original = nmt.model.attention

    def noted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        asked.append(original(q, k, torch.eye(k.size(2)).double().expand(1, ODD.heads, -1, -1), mask)[0])
        return original(q, k, v, mask)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(nmt.model, "attention", noted)
        model(SOURCE, TARGET)
    found = attention_maps(model, SOURCE, TARGET)
    expected = [*found.encoder, *(weights for pair in zip(found.decoder, found.cross, strict=True) for weights in pair)]
    assert len(asked) == len(expected) == 3 * ODD.layers
    for own, drawn in zip(asked, expected, strict=True):
        torch.testing.assert_close(drawn.double(), own, rtol=1e-6, atol=1e-7)


def test_every_row_sums_to_one_and_nothing_is_seen_of_the_future() -> None:
    found = attention_maps(built(ODD).eval(), SOURCE, TARGET)
    for weights in (*found.encoder, *found.decoder, *found.cross):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert all(not weights.triu(1).any() and weights.tril().sum() > 0 for weights in found.decoder)
    assert [tuple(weights.shape) for weights in found.cross] == [(3, 4, 5)] * ODD.layers


def test_rows_are_shares_of_the_source_for_every_token_and_layer() -> None:
    layers = cross_attention(built(ODD).eval(), [5, 6, 7], [8, 9])
    assert [layer.shape for layer in layers] == [(3, 4)] * ODD.layers
    for layer in layers:
        assert torch.all(layer > 0) and torch.allclose(layer.sum(1), torch.ones(3))


def test_an_empty_side_is_its_end_symbol_alone(model_folder: Path) -> None:
    [layer] = cross_attention(load_bundle(model_folder).model.eval(), [], [])
    assert layer.tolist() == [[1.0]]


def test_a_row_for_each_piece_with_weights_that_sum_to_one(model_folder: Path) -> None:
    found = attention_map(load_bundle(model_folder), "the old tree", "der Baum")
    assert found.source[-1] == found.target[-1] == "</s>"
    assert "".join(found.source[:-1]) == "▁the▁old▁tree"
    assert [len(row) for row in found.weights] == [len(found.source)] * len(found.target)
    assert [sum(row) for row in found.weights] == pytest.approx([1.0] * len(found.target), abs=0.005 * len(found.source))


def test_the_model_attends_as_the_map_says(model_folder: Path) -> None:
    """With values that are the positions themselves, a head's output is the expected position under its weights."""
    bundle = load_bundle(model_folder)
    model, seen = bundle.model, []
    layer = model.decoder[-1].cross_attention
    attend = layer.attend

    def spy(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        places = torch.arange(keys.size(2), dtype=keys.dtype).view(1, 1, -1, 1).expand(*values.shape).contiguous()
        from nmt.model import attention

        seen.append(attention(queries, keys, places, mask).mean(1)[0, :, 0])  # [T]
        return attend(queries, keys, values, mask)

    layer.attend = spy  # type: ignore[method-assign]
    found = attention_map(bundle, "the old tree", "der Baum")
    expected = [sum(place * weight for place, weight in enumerate(row)) for row in found.weights]
    assert expected == pytest.approx(seen[0].tolist(), abs=0.005 * len(found.source) ** 2)
    assert not layer._forward_pre_hooks
