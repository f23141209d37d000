"""The map is what the model computes: rows of weights, and the attention of its own forward pass."""

from pathlib import Path

import pytest
import torch

from nmt.attention_map import attention_map
from nmt.bundle import load_bundle


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
