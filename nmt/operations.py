"""How many operations an update takes, counted, and how many a second this machine can do, measured.

A multiplication and an addition are two operations, as makers of processors count. Backward is twice forward. Padding does not count,
nor does what is no product of matrices.
"""

import time
from collections.abc import Iterable

import torch

from nmt.batches import Batch
from nmt.model import ModelConfig
from nmt.symbols import PAD


def training_operations(model: ModelConfig, vocab_size: int, lengths: Iterable[tuple[int, int]]) -> float:
    """Operations of forward and backward for pairs with these (source, target) lengths, end symbols counted."""
    d, keys, values = model.d_model, model.heads * model.d_k, model.heads * model.d_v
    attention = 2 * d * (2 * keys + 2 * values)  # the four projections, for one position
    feed_forward = 2 * 2 * d * model.d_ff
    total = 0.0
    for s, t in lengths:
        encoder = s * (attention + feed_forward) + 2 * s * s * (keys + values)
        decoder = t * (attention + feed_forward) + 2 * t * t * (keys + values)
        cross = (t + s) * attention / 2 + 2 * t * s * (keys + values)  # queries and output of the target, keys and values of the source
        total += model.layers * (encoder + decoder + cross) + 2 * t * d * vocab_size
    return 3 * total


def batch_lengths(batch: Batch) -> list[tuple[int, int]]:
    """(source, target) lengths of the pairs of a batch, end symbols counted."""
    lengths = ((side != PAD).sum(1).tolist() for side in (batch.src, batch.tgt_out))
    return [(s, t) for s, t in zip(*lengths, strict=True) if t]  # rows that only fill up the batch have no target


def product_rate(precision: str, device: torch.device) -> float:
    """Operations a second of a plain product of large square matrices in `precision`, the fastest of several."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.ones(size, size, dtype=kind, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
