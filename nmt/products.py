"""The matrix products of decoding: weights laid out once, in the precision of the section `decode`.

What decoding may not do is let a sentence's neighbours change its bits. A product's row depends on that row alone when one kernel
computes it, whatever the number of rows. On processors:

- oneDNN computes a row of a product with packed weights in one order from 2 rows on, with any number of threads; a single row in another.
- Not so bfloat16 on processors with AMX units, where the order depends on the number of rows and of threads. So there the numbers of rows
  that give the same bits are found by trial (`even`), and no others used. One to four threads give the same bits, unless a layer has many
  times as many columns as rows; more may change them.
- The batched products of attention give a sentence the same bits in float32 while they have more than SMALL multiplications, below which
  PyTorch hands them to another library, at least two matrices, and one for each thread, for else threads share the sums of one. In bfloat16
  they do not. So attention is in float32 in every precision.
- int8: weights have one scale a column, as PyTorch's own quantised layers do, but activations have one scale a row. A scale
  for all rows, as in PyTorch's dynamic layers, would let a row change with its neighbours. Sums of integers are exact.

So batches are filled up to LEAST_ROWS rows, and to `Decoding.enough` sentences. On GPUs products are PyTorch's.

What oneDNN prepares for a number of rows stays in memory, half a MiB for each and each shape of weights. So there are FEW such numbers,
and products take no more rows at once than the largest.
"""

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from nmt.batches import rounded
from nmt.errors import UserError
from nmt.model import Attention, Transformer

SMALL = 16**3  # multiplications
LEAST_ROWS, MOST_ROWS = 16, 1024
FEW = tuple(sorted({LEAST_ROWS * rounded(count) for count in range(1, MOST_ROWS // LEAST_ROWS + 1)}))  # 16, 32, …, 256, 288, …, 512, 576, …
AMX_FEW = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
AMX_ROWS = (64, 32, 16)  # one of them, the first if it may be, says which bits are the right ones
AMX_THREADS = (1, 2, 3, 4)  # give the same ones
LEVELS = 127  # of an int8 number, to each side of 0
Precision = Literal["float32", "bfloat16", "int8"]


class Decoding(nn.Module):
    """A model ready to translate on `device`: a copy with laid-out weights, which shares with `model` what needs no other layout."""

    def __init__(self, model: Transformer, precision: Precision, device: torch.device, compiled: bool = False) -> None:
        """`compiled`: the decoder's steps are to go through torch.compile. Raises UserError for int8 on a GPU."""
        super().__init__()
        self.compiled = compiled
        if precision == "int8" and device.type != "cpu":
            raise UserError("decode.precision int8 is for processors: take bfloat16 on a GPU")
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
        shared = {id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in model.parameters()}
        self.model = copy.deepcopy(model, shared).eval()
        self.project: nn.Module = Plain(model.embedding.weight.to(device, kind))
        if device.type == "cpu":

            def laid_out(weight: Tensor, bias: Tensor | None, result: torch.dtype) -> nn.Module:
                return Int8(weight, bias) if precision == "int8" else Packed(weight, bias, kind, result)

            self.project = laid_out(model.embedding.weight, None, kind)
            for module in list(self.model.modules()):
                for name, child in module.named_children():
                    if isinstance(child, nn.Linear):
                        attends = isinstance(module, Attention) and child is not module.output
                        setattr(module, name, laid_out(child.weight, child.bias, torch.float32 if attends else kind))
        self.model.to(device, kind)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.embedding.weight.device

    def encode(self, src: Tensor, mask: Tensor | None) -> Tensor:
        """As `Transformer.encode`."""
        x = self.embed(src, 0, "src")
        for layer in self.model.encoder:
            x = layer(x, mask)
        return x

    def embed(self, tokens: Tensor, position: int, side: Literal["src", "tgt"]) -> Tensor:
        """As `Transformer.embed`, whose one operation for product and sum rounds the last few columns of a tensor in another way."""
        positions = self.model._positions(position + tokens.size(1), side)[position:, None]  # [T, 1, D]
        scaled = self.model.embedding(tokens.t()).float().mul_(math.sqrt(self.model.config.d_model))
        return scaled.add_(positions).to(positions.dtype)  # type: ignore[no-any-return]

    def enough(self, places: int) -> int:
        """How many sentences at least a batched product takes whose result has so many `places` a sentence and head, to be no small one."""
        config = self.model.config
        matrices = max(2, torch.get_num_threads()) if self.device.type == "cpu" else 1
        return max(SMALL // (config.heads * min(config.d_k, config.d_v) * places) + 1, -(-matrices // config.heads))


class Plain(nn.Module):
    """x W^T as PyTorch computes it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def by_rows(product: Callable[[Tensor], Tensor], x: Tensor, few: Sequence[int] = FEW) -> Tensor:
    """A product for x [..., in] with any number of rows, made of some for numbers of rows that are among `few`, ascending."""
    count, most = x.numel() // x.size(-1), few[-1]
    if count <= most and few[bisect_left(few, count)] == count:
        return product(x)
    done = []
    for block in x.flatten(0, -2).split(most):
        missing = few[bisect_left(few, len(block))] - len(block)
        done.append(product(nn.functional.pad(block, (0, 0, 0, missing)) if missing else block)[: len(block)])
    return (done[0] if len(done) == 1 else torch.cat(done)).view(*x.shape[:-1], -1)


@cache
def even(wide: int, out: int, biased: bool, threads: int) -> tuple[int, ...]:
    """Those of AMX_FEW in which a bfloat16 product of this shape adds each row up in the same order, with so many threads, now in use.

    By trial, with one row for all and sums of numbers of which half are the negatives of the others, somewhere: of such a sum rounding
    alone is left, and that differs wherever the order does.
    """
    luck = torch.Generator().manual_seed(1)
    first, second = torch.randperm(wide, generator=luck)[: wide // 2 * 2].chunk(2)
    weight, x = torch.zeros(out, wide), torch.zeros(1, wide)
    weight[:, first] = torch.randn(out, wide // 2, generator=luck)
    weight[:, second] = -weight[:, first]
    x[:, first] = x[:, second] = torch.randn(1, wide // 2, generator=luck)
    trial = Packed(weight, torch.zeros(out) if biased else None, torch.bfloat16)
    rows = x.bfloat16().expand(MOST_ROWS, wide).contiguous()
    for count in AMX_ROWS:
        by_threads = []
        for number in (*AMX_THREADS, threads):
            torch.set_num_threads(number)
            by_threads.append(trial.product(rows[:count])[0])
        if all(torch.equal(found, by_threads[0]) for found in by_threads[:-1]):
            break
    return tuple(count for count in AMX_FEW if bool((trial.product(rows[:count]) == by_threads[-1]).all()))


class Packed(nn.Module):
    """x W^T + b with W [out, in] in oneDNN's own layout, so that no call has to rearrange it; computed in `kind`, given as `result`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: torch.dtype, result: torch.dtype | None = None) -> None:
        super().__init__()
        self.kind, self.result = kind, result or kind
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to("cpu", kind), None)
        self.bias = None if bias is None else bias.detach().to("cpu", kind)
        self.uneven = kind == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
        self.shape = (weight.size(1), weight.size(0), bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        few = even(*self.shape, torch.get_num_threads()) if self.uneven else FEW
        return by_rows(self.product, x.to(self.kind), few).to(self.result)

    def product(self, x: Tensor) -> Tensor:
        """The product for x [..., in] as it is."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


class Int8(nn.Module):
    """x W^T + b with W [out, in] rounded to int8 with a scale for each row of W, and x to as many levels with a scale for each row of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight = weight.detach().to("cpu", torch.float32)
        self.scale = weight.abs().amax(1).clamp_min_(1e-30) / LEVELS  # [out]
        self.zero = torch.zeros(len(weight), dtype=torch.long)
        levels = (weight / self.scale[:, None]).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(levels, None)
        self.bias = None if bias is None else bias.detach().to("cpu", torch.float32)
        self.middle = torch.tensor(LEVELS + 1.5)  # the level of 0, and a half for `to` to cut off

    def forward(self, x: Tensor) -> Tensor:
        return by_rows(self.product, x)

    def product(self, x: Tensor) -> Tensor:
        """The product for x [..., in] as it is."""
        scale = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30).div_(LEVELS)
        levels = torch.addcmul(self.middle, x, 1 / scale).to(torch.uint8)  # oneDNN multiplies unsigned by signed numbers fastest
        products: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, LEVELS + 1, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return products.mul_(scale) if self.bias is None else torch.addcmul(self.bias, products, scale)
