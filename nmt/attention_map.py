"""Where a model looks while it writes: the attention of the decoder's last layer over the source, for one pair of lines.

source pieces   ▁Turn  ▁on  </s>
▁Schalte         0.71  0.20  0.09
▁ein             0.12  0.77  0.11
</s>             0.05  0.08  0.87
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.bundle import Bundle
from nmt.model import CrossAttention, DecoderLayer
from nmt.symbols import BOS, EOS


@dataclass(frozen=True)
class AttentionMap:
    """`weights[i][j]`: how much of the attention lies on piece j of the source when piece i of the target is chosen, mean of the heads."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


@torch.inference_mode()
def attention_map(bundle: Bundle, source: str, target: str) -> AttentionMap:
    """The map of a source line and its translation, end symbols included, rounded to two decimals. (Vaswani et al. 2017, §3.2.3)"""
    model, tokenizer = bundle.model.eval(), bundle.tokenizer
    src, tgt = tokenizer.encode([source])[0], tokenizer.encode([target])[0]
    layer = model.decoder[-1]
    assert isinstance(layer, DecoderLayer)
    found: list[Tensor] = []

    def look(module: CrossAttention, arguments: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> None:
        x, keys, _, _ = arguments
        [queries] = module.split(module.query(x), module.d_k)
        found.append((queries @ keys.transpose(-1, -2) / math.sqrt(module.d_k)).softmax(-1))  # [1, H, T, S]

    handle = layer.cross_attention.register_forward_pre_hook(look)
    try:
        model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]]))
    finally:
        handle.remove()
    weights = found[0].float().mean(1)[0]  # [T, S]
    pieces = [[*tokenizer.pieces(ids), "</s>"] for ids in (src, tgt)]
    return AttentionMap(pieces[0], pieces[1], [[round(weight, 2) for weight in row] for row in weights.tolist()])
