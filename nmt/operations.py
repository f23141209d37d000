"""How many operations an update takes, counted, and how many a second this machine can do, measured.

What is counted is in `nmt.forecast`; padding is not.
"""

import time
from collections.abc import Sequence

import torch

from nmt.batches import Batch
from nmt.forecast import Work, flop, total
from nmt.model import ModelConfig
from nmt.symbols import PAD


def training_operations(model: ModelConfig, vocab_size: int, lengths: Sequence[tuple[int, int]]) -> float:
    """Operations of forward and backward for pairs with these (source, target) lengths, end symbols counted."""
    src, tgt = zip(*lengths, strict=True)
    return float(total(flop(model, vocab_size, Work.of(src, tgt))))


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
