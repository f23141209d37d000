"""Where a trained model looks: the weights of every head, for one pair of sentences. S source tokens, T target tokens, H heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.batches import padded
from nmt.bundle import Bundle
from nmt.model import DecoderLayer, EncoderLayer, Transformer, attention, causal_mask
from nmt.symbols import BOS


@dataclass(frozen=True)
class AttentionMaps:
    """Weights by layer; the row of the token that looks sums to 1."""

    encoder: list[Tensor]  # each [H, S, S]
    decoder: list[Tensor]  # each [H, T, T], 0 behind the diagonal
    cross: list[Tensor]  # each [H, T, S]


@torch.inference_mode()
def attention_maps(model: Transformer, src: Tensor, tgt: Tensor) -> AttentionMaps:
    """The weights of `model`, without dropout, for src [1, S] and tgt [1, T], which begins with the begin symbol; both without padding.

    Walks the layers as the model does, and asks `attention` itself: with the identity for values its output is its weights.
    """
    assert not model.training
    found = AttentionMaps([], [], [])
    x = model.embed(src, 0, "src")
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        queries, keys, _ = layer.self_attention.project(x)
        found.encoder.append(_weights(queries, keys, None))
        x = layer(x, None)
    memory, x = x, model.embed(tgt, 0, "tgt")
    causal = causal_mask(x)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        queries, keys, _ = layer.self_attention.project(x)
        found.decoder.append(_weights(queries, keys, causal))
        middle = layer.self_norm(x + layer.self_attention(x, causal))
        cross = layer.cross_attention
        seen = cross.keys_values(memory)
        [queries] = cross.split(cross.query(middle), cross.d_k)
        found.cross.append(_weights(queries, seen[0], None))
        x = layer(x, causal, seen, None)
    return found


def cross_attention(model: Transformer, source: list[int], target: list[int]) -> list[Tensor]:
    """How each decoder layer divides its attention among the source's tokens, mean over its heads, [T + 1, S + 1] each, end symbols last.

    Row t is that for choosing token t of `target`, those before it being written. Rows sum to 1.
    """
    device = model.embedding.weight.device
    src, tgt = (padded([side]).to(device) for side in (source, target))
    so_far = torch.cat([tgt.new_full((1, 1), BOS), tgt[:, :-1]], 1)
    return [weights.mean(0) for weights in attention_maps(model, src, so_far).cross]


@dataclass(frozen=True)
class AttentionMap:
    """`weights[i][j]`: how much of the attention lies on piece j of the source when piece i of the target is chosen, mean of the heads."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


def attention_map(bundle: Bundle, source: str, target: str) -> AttentionMap:
    """The map of a source line and its translation, end symbols included, rounded to two decimals. (Vaswani et al. 2017, §3.2.3)"""
    src, tgt = bundle.tokenizer.encode([source])[0], bundle.tokenizer.encode([target])[0]
    weights = cross_attention(bundle.model.eval(), list(src), list(tgt))[-1]
    pieces = [[*bundle.tokenizer.pieces(ids), "</s>"] for ids in (src, tgt)]
    return AttentionMap(pieces[0], pieces[1], [[round(weight, 2) for weight in row] for row in weights.tolist()])


def _weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """[H, T, S] for queries [1, H, T, K] and keys [1, H, S, K]."""
    count = keys.size(2)
    identity = torch.eye(count, dtype=keys.dtype, device=keys.device).expand(1, keys.size(1), count, count)
    return attention(queries, keys, identity, mask)[0].float().cpu()
