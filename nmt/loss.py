"""Label-smoothed cross entropy (§5.4) over a large vocabulary, never holding all logits at once.

N target tokens, D d_model, V vocabulary. Sums travel, means are taken last: a sum over tokens can be added over
pieces and processes and be divided once.
"""

from typing import Any

import torch
from torch import Tensor

from nmt.batches import Batch
from nmt.model import Transformer

CHUNK = 256  # tokens whose logits [CHUNK, V] exist at the same time; more are no faster on a CPU
GPU_CHUNK = 1024  # has not been measured
TINY = 1e-30  # float32 and bfloat16 hold no probability much below


def batch_sums(model: Transformer, batch: Batch, smoothing: float, precision: str) -> tuple[Tensor, Tensor]:
    """`loss_sums` over the target tokens of `batch`; the model's products run in `precision`, float32 or bfloat16."""
    with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        states = model(batch.src, batch.tgt_in)
    # As for the batch itself, few shapes: what oneDNN prepares for each takes two milliseconds, and two thirds of a MiB for ever.
    rows, columns = batch.places // batch.tgt_out.size(1), batch.places % batch.tgt_out.size(1)
    states = states[rows, columns]  # [N, D], with filling behind the tokens
    targets = batch.tgt_out[rows, columns][: batch.tokens]
    if precision == "bfloat16":
        states = states.bfloat16()
    return loss_sums(states, model.embedding.weight, targets, smoothing)


def loss_sums(states: Tensor, embedding: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the smoothed loss (differentiable) and of the plain negative log likelihood (not).

    states [N or more, D] are the decoder's, embedding [V, D] the output projection, targets [N] the right tokens, without padding. States
    behind the first N are filling: they count for nothing and get no gradient. The smoothed target distribution gives `smoothing` / V to
    every token and the rest to the right one, as `torch.nn.functional.cross_entropy` does.
    Products and softmax have the type of `states`, sums are taken in float32 or better. Both sums are scalars.
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
        size = GPU_CHUNK if states.is_cuda else CHUNK
        for chunk in range(0, len(states), size):
            part = slice(chunk, chunk + size)
            x, real = states[part], max(0, min(size, len(targets) - chunk))
            right = torch.arange(real, device=x.device), targets[part]
            logits = x @ weight.t()  # [size, V]
            p = logits.softmax(1)
            right_logits, right_p = logits[right].to(wide), p[right].to(wide)
            if _may_look(states):
                token_nll = -right_p.log()  # [size]; from p, which is cheaper than another pass over the logits
                lost = (right_p < TINY).nonzero().squeeze(1)  # except where p is too small for its type
                token_nll[lost] = logits[lost].to(wide).logsumexp(1) - right_logits[lost]
            else:
                token_nll = logits[:real].to(wide).logsumexp(1) - right_logits
            nll += token_nll.sum()
            uniform += (token_nll + right_logits - x[:real].to(wide) @ weight_mean).sum()
            if training:
                p[right] -= 1 - smoothing
                p[real:] = 0
                torch.mm(p, weight, out=states_gradient[part])
                if p.dtype == wide:
                    torch.addmm(weight_gradient, p.t(), x, out=weight_gradient)  # without a tensor of its size in between
                else:
                    weight_gradient += p.t() @ x
        if training:
            states_gradient[: len(targets)] -= (smoothing * weight_mean).to(states.dtype)
            weight_gradient -= states[: len(targets)].to(wide).sum(0) * (smoothing / len(embedding))
        ctx.save_for_backward(states_gradient, weight_gradient)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        states_gradient, weight_gradient = ctx.saved_tensors
        loss_gradient = gradients[0]
        # In place, so a second pass through the same graph is an error.
        return states_gradient.mul_(loss_gradient), weight_gradient.mul_(loss_gradient), None, None


def _may_look(x: Tensor) -> bool:
    """Whether the program may depend on values of x. Those of a GPU it would have to wait for, with nothing for the GPU to do meanwhile."""
    return not x.is_cuda
