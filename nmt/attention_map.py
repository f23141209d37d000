"""Where a model looks while it writes: the attention of the decoder's last layer over the source, for one pair of lines.

source pieces   ▁Turn  ▁on  </s>
▁Schalte         0.71  0.20  0.09
▁ein             0.12  0.77  0.11
</s>             0.05  0.08  0.87
"""

from dataclasses import dataclass

from nmt.attention_maps import cross_attention
from nmt.bundle import Bundle


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
