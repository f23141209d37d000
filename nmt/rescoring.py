"""The probability of a given translation, teacher-forced: what a search by any engine should have found for it.

B sentences, S source positions, T target positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.batches import padded
from nmt.export_weights import NEVER_PRODUCED
from nmt.model import Transformer
from nmt.symbols import BOS, PAD

TOKENS = 2000  # padded target positions whose logits exist at the same time


@dataclass(frozen=True)
class LogProb:
    """Log probability of a whole translation."""

    plain: float  # among all tokens, as the search of this project has it
    producible: float  # among those that are ever produced, as engines have it


def rescore(model: Transformer, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[LogProb]:
    """What each target, with its end symbol, is worth given its source, teacher-forced."""
    device = model.embedding.weight.device
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(targets)), key=lambda i: -lengths[i])
    result: dict[int, LogProb] = {}
    while len(result) < len(order):
        first = order[len(result)]
        chosen = order[len(result) : len(result) + max(1, TOKENS // lengths[first])]
        totals = _log_probs(model, padded([sources[i] for i in chosen]).to(device), padded([targets[i] for i in chosen]).to(device))
        result |= {i: LogProb(*both) for i, both in zip(chosen, totals.tolist(), strict=True)}
    return [result[i] for i in range(len(targets))]


@torch.inference_mode()
def _log_probs(model: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
    """The numbers of `LogProb` [B, 2] for tgt [B, T], which ends with the end symbol and padding, given src [B, S]."""
    model.eval()
    begin = tgt.new_full((len(tgt), 1), BOS)
    logits = model.logits(model(src, torch.cat([begin, tgt[:, :-1]], 1)))  # [B, T, V]
    chosen = logits.gather(-1, tgt[:, :, None])[:, :, 0]  # [B, T]
    plain = chosen - logits.logsumexp(-1)
    logits[:, :, NEVER_PRODUCED] = -torch.inf
    producible = chosen - logits.logsumexp(-1)
    return torch.stack([plain, producible], -1).masked_fill((tgt == PAD)[:, :, None], 0).sum(1)
