"""Loss on held-out pairs: unsmoothed, so that exp(loss per token) is the perplexity per piece (§6.2)."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.batches import in_order
from nmt.loss import batch_sums
from nmt.model import Transformer

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class HeldOutLoss:
    """Negative log likelihood over `tokens` target tokens, end symbols counted."""

    nll: float  # nats, summed
    tokens: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        """Per piece."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """exp of a loss in nats; beyond e^700, where a float ends, it stays e^700."""
    return math.exp(min(loss, 700.0))


@torch.no_grad()
def held_out_loss(model: Transformer, shards: Path, device: torch.device, precision: str) -> HeldOutLoss:
    """The loss of `model`, without dropout, on all pairs of the folder `shards`; its products run in `precision`, float32 or bfloat16."""
    training = model.training
    model.eval()
    nll, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in in_order(shards, BATCH_TOKENS):
        nll += batch_sums(model, batch.to(device), 0.0, precision)[1]
        tokens += batch.tokens
    model.train(training)
    return HeldOutLoss(nll.item(), tokens)
