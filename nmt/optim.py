"""Adam and the paper's learning rate (§5.3)."""

import math

import torch
from torch import Tensor, nn


def learning_rate(step: int, d_model: int, warmup_updates: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) for step = 1, 2, … (eq. 3)."""
    return math.pow(d_model, -0.5) * min(math.pow(step, -0.5), step * math.pow(warmup_updates, -1.5))


def adam(model: nn.Module, beta1: float, beta2: float, epsilon: float) -> torch.optim.Adam:
    """Adam over all weights; the learning rate is set before each step."""
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(beta1, beta2), eps=epsilon, fused=True)


def adam_step(optimizer: torch.optim.Optimizer, rate: float, applied: Tensor) -> None:
    """One step with the learning rate `rate` if the truth value `applied` holds, which only the device needs to know.

    If not, weights, moments and Adam's own count of steps stay as they are.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]  # what torch.amp's gradient scaler tells a fused optimizer
    optimizer.step()
