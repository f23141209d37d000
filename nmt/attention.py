"""Where the decoder looks: the weights of its attention over the source, for a given translation.

B sentences, H heads, T target positions, S source positions, K d_k.
"""

import math

import torch
from torch import Tensor

from nmt.batches import padded
from nmt.model import DecoderLayer, Transformer, causal_mask, padding_mask
from nmt.symbols import BOS


@torch.inference_mode()
def attention_weights(model: Transformer, source: list[int], target: list[int]) -> list[Tensor]:
    """The weights of each decoder layer, mean over its heads, [T + 1, S + 1] each, end symbols last.

    Row t tells how the layer divides its attention among the source's tokens when the model is about to write token t of `target`, having
    written those before. Rows sum to 1.
    """
    model.eval()
    device = model.embedding.weight.device
    src, tgt = padded([source]).to(device), padded([target]).to(device)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    x = model.embed(torch.cat([tgt.new_full((1, 1), BOS), tgt[:, :-1]], 1), 0, "tgt")  # [T, 1, D]
    causal, found = causal_mask(x), []
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
        keys, values = attention.keys_values(memory)
        between = layer.self_norm(x + layer.self_attention(x, causal))
        [queries] = attention.split(attention.query(between), attention.d_k)  # [1, H, T, K]
        weights = (queries @ keys.transpose(-1, -2) / math.sqrt(attention.d_k)).softmax(-1)  # [1, H, T, S]
        found.append(weights[0].mean(0).float().cpu())
        x = layer(x, causal, (keys, values), mask)
    return found
