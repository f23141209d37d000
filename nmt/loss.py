"""Label-smoothed cross entropy (§5.4) over a large vocabulary, never holding all logits at once.

N target tokens, D d_model, V vocabulary. Sums travel, means are taken last: a sum over tokens can be added over
pieces and processes and be divided once.
"""

from typing import Any

import torch
from torch import Tensor

from nmt.batches import Batch
from nmt.model import Transformer
from nmt.symbols import PAD

CHUNK = 1024  # tokens whose logits [CHUNK, V] exist at the same time


def batch_sums(model: Transformer, batch: Batch, smoothing: float, precision: str) -> tuple[Tensor, Tensor]:
    """`loss_sums` over the target tokens of `batch`; the model's products run in `precision`, float32 or bfloat16."""
    real = batch.tgt_out != PAD
    with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        states = model(batch.src, batch.tgt_in)
    states = states[real]
    if precision == "bfloat16":
        states = states.bfloat16()
    return loss_sums(states, model.embedding.weight, batch.tgt_out[real], smoothing)


def loss_sums(states: Tensor, embedding: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the smoothed loss (differentiable) and of the plain negative log likelihood (not).

    states [N, D] are the decoder's, embedding [V, D] the output projection, targets [N] the right tokens, without padding. The smoothed
    target distribution gives `smoothing` / V to every token and the rest to the right one, as `torch.nn.functional.cross_entropy` does.
    The products run in the type of `states`, sums and the softmax in float32 or better. Both sums are scalars.
    """
    loss, nll = _LossSums.apply(states, embedding, targets, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _LossSums(torch.autograd.Function):
    """Computes the gradient along with the loss, chunk by chunk: softmax - smoothing / V - (1 - smoothing) at the target.

    The constant part of the gradient is a term of rank one in both products, so it is added once at the end; the logits
    are written by their product and passed over once by the softmax.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        weight = embedding.to(states.dtype)
        wide = torch.promote_types(states.dtype, torch.float32)
        training = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        states_gradient = torch.empty_like(states)
        weight_gradient = torch.zeros(embedding.shape, dtype=wide, device=states.device)
        nll = torch.zeros((), dtype=wide, device=states.device)
        uniform = torch.zeros((), dtype=wide, device=states.device)  # sum over tokens of the mean over V of -log p
        weight_mean = weight.to(wide).mean(0)  # [D]
        for chunk in range(0, len(targets), CHUNK):
            part = slice(chunk, chunk + CHUNK)
            x, right = states[part], targets[part, None]
            logits = (x @ weight.t()).to(wide)  # [CHUNK, V]
            right_logits, top_logits = logits.gather(1, right).squeeze(1), logits.amax(1)
            p = logits.softmax(1)
            log_z = top_logits - p.amax(1).log()  # [CHUNK]
            nll += (log_z - right_logits).sum()
            uniform += (log_z - x.to(wide) @ weight_mean).sum()
            if training:
                p.scatter_add_(1, right, torch.full_like(right, smoothing - 1, dtype=wide))
                p = p.to(states.dtype)
                torch.mm(p, weight, out=states_gradient[part])
                weight_gradient += p.t() @ x
        if training:
            states_gradient -= (smoothing * weight_mean).to(states.dtype)
            weight_gradient -= states.to(wide).sum(0) * (smoothing / len(embedding))
        ctx.save_for_backward(states_gradient, weight_gradient)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        states_gradient, weight_gradient = ctx.saved_tensors
        loss_gradient = gradients[0]
        # In place, so a second pass through the same graph is an error.
        return states_gradient.mul_(loss_gradient), weight_gradient.mul_(loss_gradient), None, None
