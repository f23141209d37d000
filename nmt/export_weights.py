"""The weights of a model as other engines want them."""

import torch
from torch import Tensor, nn

from nmt.symbols import BOS, PAD, UNKNOWN

NEVER_PRODUCED = [PAD, UNKNOWN, BOS]
IMPOSSIBLE = -1e4  # a logit so low that no token with it is ever chosen, and that float16 still holds


def projections(joined: nn.Linear, heads: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """The `count` projections that `joined` holds head by head, each apart: weight [D, D] and bias [D], its heads one below the other."""
    weight = joined.weight.detach().view(heads, count, -1, joined.in_features)  # [H, count, K, D]
    bias = joined.bias.detach().view(heads, count, -1)  # [H, count, K]
    return [(weight[:, i].flatten(0, 1), bias[:, i].flatten()) for i in range(count)]


def output_bias(vocab_size: int) -> Tensor:
    """A bias [V] of the logits that keeps an engine from choosing the symbols which the search of this project never produces."""
    bias = torch.zeros(vocab_size)
    bias[NEVER_PRODUCED] = IMPOSSIBLE
    return bias
