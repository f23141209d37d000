"""What a training will take, before it begins: parameters, operations, memory.

N layers, D d_model, F d_ff, H heads, K d_k, V d_v or vocabulary. All but `activation_bytes`, which looks at one small forward pass, and
`counted`, which looks at a built model, is arithmetic.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.batches import Batch, plan_updates
from nmt.loss import GPU_CHUNK, batch_sums
from nmt.model import LEARNED_POSITIONS, ModelConfig, Transformer
from nmt.shards import read_shard, shard_files
from nmt.symbols import EOS

P100_FLOPS = 9.5e12  # §6, footnote 5: what the paper takes for the sustained single precision of one of its GPUs, a second
COMPONENTS = ("embedding", "positions", "encoder self-attention", "decoder self-attention", "cross-attention", "feed-forward", "norms")


@dataclass(frozen=True)
class Work:
    """Sums over the pairs of an average update, end symbols counted, padding not; of s source and t target tokens a pair."""

    pairs: float
    src: float  # sum of s
    tgt: float  # sum of t
    src_src: float  # sum of s²
    tgt_tgt: float  # sum of t²
    src_tgt: float  # sum of s t

    @classmethod
    def of(cls, src: Any, tgt: Any, updates: int = 1) -> "Work":
        """Of pairs with these lengths, spread over so many updates."""
        s, t = np.asarray(src, np.float64), np.asarray(tgt, np.float64)
        return cls(*(float(value) / updates for value in (len(s), s.sum(), t.sum(), s @ s, t @ t, s @ t)))

    @classmethod
    def of_shards(cls, shards: Path, tokens_per_update: int) -> "Work":
        """Of the training text in a folder of shards, cut into updates as a training cuts it."""
        lengths = [(shard.src.lengths + 1, shard.tgt.lengths + 1) for shard in map(read_shard, shard_files(shards))]
        src, tgt = (np.concatenate(side).astype(np.int64) for side in zip(*lengths, strict=True))
        return cls.of(src, tgt, len(plan_updates(src, tgt, tokens_per_update, np.random.default_rng(0))))

    @classmethod
    def assumed(cls, tokens_per_update: int, length: int) -> "Work":
        """Of pairs that all have `length` tokens a side."""
        pairs = tokens_per_update / length
        return cls(pairs, *[pairs * length] * 2, *[pairs * length**2] * 3)


def by_formula(c: ModelConfig, vocab_size: int) -> dict[str, int]:
    """Parameters by component (§3): each linear map has a bias, each norm a gain and a bias, the one embedding matrix serves three uses."""
    keys, values = c.heads * c.d_k, c.heads * c.d_v
    attention = (c.d_model + 1) * (2 * keys + values) + (values + 1) * c.d_model
    feed_forward = (c.d_model + 1) * c.d_ff + (c.d_ff + 1) * c.d_model
    positions = 2 * LEARNED_POSITIONS * c.d_model if c.positions == "learned" else 0
    numbers = (vocab_size * c.d_model, positions, *[c.layers * attention] * 3, c.layers * 2 * feed_forward, c.layers * 5 * 2 * c.d_model)
    return dict(zip(COMPONENTS, numbers, strict=True))


def counted(config: ModelConfig, vocab_size: int) -> dict[str, int]:
    """The same of a model that is built, without memory for its weights."""
    with torch.device("meta"):
        model = Transformer(config, vocab_size)
    found = dict.fromkeys(COMPONENTS, 0)
    for name, weight in model.named_parameters():
        found[_component(name)] += weight.numel()
    return found


def flop(c: ModelConfig, vocab_size: int, work: Work) -> dict[str, float]:
    """Operations of an update by component, a multiplication and an addition being two; those of matrix products, all others are few.

    Backward there are two products for each one forward. The projection before the softmax is the embedding's.
    """
    keys, values = c.heads * c.d_k, c.heads * c.d_v
    ends = 2 * c.d_model * (keys + values)  # queries and output projection, of each token that looks
    seen = 2 * c.d_model * (keys + values)  # keys and values, of each token that is looked at
    pair = 2 * (keys + values)  # Q K^T and weights times V, of each pair of tokens
    numbers = {
        "embedding": 2 * c.d_model * vocab_size * work.tgt,
        "encoder self-attention": c.layers * ((ends + seen) * work.src + pair * work.src_src),
        "decoder self-attention": c.layers * ((ends + seen) * work.tgt + pair * work.tgt_tgt),
        "cross-attention": c.layers * (ends * work.tgt + seen * work.src + pair * work.src_tgt),
        "feed-forward": c.layers * 4 * c.d_model * c.d_ff * (work.src + work.tgt),
    }
    return {name: 3 * number for name, number in numbers.items()}


def state_bytes(parameters: int, microbatches: int) -> dict[str, int]:
    """Memory of weights, Adam's two moments and gradients, float32 all. Of the gradients of n pieces log2(n) + 1 exist at one time."""
    gradients = math.ceil(math.log2(microbatches)) + 1
    return {"weights": 4 * parameters, "moments": 8 * parameters, "gradients": 4 * parameters * gradients}


def activation_bytes(config: ModelConfig, vocab_size: int, rows: int, src: int, tgt: int, precision: str, smoothing: float) -> int:
    """Memory that the backward pass of a piece of `rows` pairs of `src` and `tgt` tokens needs, and the logits of a part of it.

    Counted on a CPU in a forward pass of one and of two such pairs: each further pair adds as much as the second. A GPU's fused
    attention keeps less, for it computes the weights again.
    """
    model = Transformer(config, vocab_size).train()
    model.generator = torch.Generator().manual_seed(1)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def saved(rows: int) -> int:
        kept: dict[int, Tensor] = {}

        def note(tensor: Tensor) -> Tensor:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        ids = [torch.full((rows, length), EOS + 1) for length in (src, tgt, tgt)]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            batch_sums(model, Batch.of(*ids), smoothing, precision)
        return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)

    one, two = saved(1), saved(2)
    logits = min(GPU_CHUNK, rows * tgt) * vocab_size * 2 * (2 if precision == "bfloat16" else 4)
    return one + (rows - 1) * (two - one) + logits


def gpu_time_cost(hours: float, gpus: int) -> float:
    """The paper's "training cost" (Table 2): time x GPUs x their speed, which counts idle units too, so more than the arithmetic."""
    return hours * 3600 * gpus * P100_FLOPS


def total(parts: dict[str, Any]) -> Any:
    """Sum over components."""
    return sum(parts.values())


def _component(name: str) -> str:
    """Which of COMPONENTS the weight of this name belongs to."""
    parts: Sequence[str] = name.split(".")
    if len(parts) == 2:
        return "positions" if "positions" in parts[0] else "embedding"
    kinds: dict[str, str] = defaultdict(lambda: "norms", feed_forward="feed-forward", cross_attention="cross-attention")
    kinds["self_attention"] = f"{parts[0]} self-attention"
    return kinds[parts[2]]
