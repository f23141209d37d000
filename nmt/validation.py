"""Loss on held-out pairs: unsmoothed, so that exp(loss per token) is the perplexity per piece (§6.2)."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.batches import in_order
from nmt.loss import loss_sums
from nmt.model import Transformer
from nmt.symbols import PAD

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
def held_out_loss(model: Transformer, shards: Path, device: torch.device) -> HeldOutLoss:
    """The loss of `model`, without dropout and in its own precision, on all pairs of the folder `shards`."""
    training = model.training
    model.eval()
    nll, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in in_order(shards, BATCH_TOKENS):
        batch = batch.to(device)
        real = batch.tgt_out != PAD
        states = model(batch.src, batch.tgt_in)[real]
        nll += loss_sums(states, model.embedding.weight, batch.tgt_out[real], 0.0)[1]
        tokens += len(states)
    model.train(training)
    return HeldOutLoss(nll.item(), tokens)
