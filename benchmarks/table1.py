"""Table 1 of the paper, measured: how time, sequential steps and paths of a layer grow with the length n of a sentence.

    python benchmarks/table1.py                        d = 64, so that n is far above d at the end; about a minute
    python benchmarks/table1.py --d 512 --device cuda

Each layer computes forward and backward on one sentence, all at the same d, in turn, several rounds; the fastest round counts, for the
machine may be shared. An exponent is the slope of log(time) over log(n), between 16 and 64, where a call costs more than its work, and
between the two largest n. Steps are the longest chain of operations, counted in the layers themselves. So are paths, the layers from the
first position to the last, but for the recurrence, whose path is its n steps.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where nmt is

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from nmt.model import ModelConfig, SelfAttention

KERNEL = 3
COUNTED = (16, 64, 256)  # lengths for which steps and paths are counted
PAPER = {
    "self-attention": ("n² d", "1", "1"),
    "recurrence (LSTM)": ("n d²", "n", "n"),
    f"convolution, k {KERNEL}": ("k n d²", "1", "log_k n"),
}


class Additive(nn.Module):
    """Bahdanau et al. 2015: the weight of key j for query i is a softmax over v · tanh(W q_i + U k_j). Without projection of the values."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.query, self.key, self.score = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, 1, d]"""
        hidden = (self.query(x) + self.key(x).transpose(0, 1)).tanh()  # [n, n, d]
        return (self.score(hidden).squeeze(-1).softmax(-1) @ x[:, 0])[:, None]  # type: ignore[no-any-return]


class DotProduct(nn.Module):
    """softmax(x x^T) x: attention without projections, heads or scaling."""

    def forward(self, x: Tensor) -> Tensor:
        """x [n, 1, d]"""
        return ((x[:, 0] @ x[:, 0].T).softmax(-1) @ x[:, 0])[:, None]


class Convolution(nn.Module):
    """A convolution over a position and those before it, `dilation` apart."""

    def __init__(self, d: int, dilation: int = 1) -> None:
        super().__init__()
        self.before = dilation * (KERNEL - 1)
        self.inner = nn.Conv1d(d, d, KERNEL, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, 1, d]"""
        return self.inner(nn.functional.pad(x.permute(1, 2, 0), (self.before, 0))).permute(2, 0, 1)  # type: ignore[no-any-return]


class Recurrence(nn.Module):
    """PyTorch's LSTM, which is one operation for the whole sentence, or the same cell by cell, so that its steps can be counted."""

    def __init__(self, d: int, by_cell: bool = False) -> None:
        super().__init__()
        self.whole, self.cell, self.by_cell = nn.LSTM(d, d), nn.LSTMCell(d, d), by_cell

    def forward(self, x: Tensor) -> Tensor:
        """x [n, 1, d]"""
        if not self.by_cell:
            return self.whole(x)[0]  # type: ignore[no-any-return]
        state = (torch.zeros_like(x[0]), torch.zeros_like(x[0]))
        states = []
        for token in x:
            state = self.cell(token, state)
            states.append(state[0])
        return torch.stack(states)


class Attention(nn.Module):
    """The project's own self-attention, as base has it: heads of 64."""

    def __init__(self, d: int) -> None:
        super().__init__()
        heads = max(1, d // 64)
        shape = {"layers": 1, "d_model": d, "d_ff": d, "heads": heads, "d_k": d // heads, "d_v": d // heads}
        self.inner = SelfAttention(ModelConfig.model_validate(shape | {"dropout": 0.0, "positions": "sinusoidal"}))

    def forward(self, x: Tensor) -> Tensor:
        """x [n, 1, d]"""
        return self.inner(x, None)  # type: ignore[no-any-return]


def layers(d: int) -> dict[str, nn.Module]:
    """What is timed, by name."""
    own = [Attention(d), Recurrence(d), Convolution(d)]
    return dict(zip(PAPER, own, strict=True)) | {"additive attention": Additive(d), "dot product, unscaled": DotProduct()}


def seconds(layer: nn.Module, x: Tensor, least: float) -> float:
    """Of the fastest forward and backward pass within `least` seconds; on a CPU of its own time, which others do not count into."""
    now = time.perf_counter if x.is_cuda else time.process_time
    fastest, first = math.inf, now()
    while fastest == math.inf or now() - first < least:
        began = now()
        layer(x).sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        fastest = min(fastest, now() - began)
    return fastest


def slope(times: dict[int, float], low: int, high: int) -> float:
    """The exponent of the growth between two lengths."""
    return math.log(times[high] / times[low]) / math.log(high / low)


def steps(layer: nn.Module, n: int, d: int) -> int:
    """The longest chain of operations from the output of `layer` back to its input, as autograd has recorded them."""
    x = torch.randn(n, 1, d, requires_grad=True)
    end = layer(x).sum().grad_fn
    order, depth, seen, stack = [], {}, set(), [(end, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((following, False) for following, _ in node.next_functions)
    for node in order:  # what comes before a node stands before it
        depth[node] = 1 + max((depth[following] for following, _ in node.next_functions if following in depth), default=0)
    return int(depth[end])


def path(make: Callable[[int], nn.Module], n: int, d: int) -> int:
    """How many layers the last position needs until it sees the first: layer i is `make(i)`."""
    x = torch.randn(n, 1, d, requires_grad=True)
    y = x
    for count in range(1, 64):
        y = make(count - 1)(y)
        [gradient] = torch.autograd.grad(y[-1].sum(), x, retain_graph=True)
        if gradient[0].any():
            return count
    raise AssertionError("no path")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--longest", type=int, default=1024, help="n goes from 16 to this, doubling")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    lengths = [16 << i for i in range(int(math.log2(options.longest // 16)) + 1)]
    measured = {name: layer.to(options.device) for name, layer in layers(options.d).items()}
    times: dict[str, dict[int, float]] = {name: dict.fromkeys(lengths, math.inf) for name in measured}
    for _ in range(options.rounds):
        for n in lengths:
            x = torch.randn(n, 1, options.d, device=options.device, requires_grad=True)
            for name, layer in measured.items():
                times[name][n] = min(times[name][n], seconds(layer, x, 0.02))
    console = Console(width=150, highlight=False)
    shown = Table(
        "layer",
        *(f"n {n}" for n in lengths),
        "exponent 16-64",
        f"{lengths[-2]}-{lengths[-1]}",
        "paper",
        title="milliseconds, forward and backward",
    )
    for name, of in times.items():
        own = [f"{slope(of, 16, 64):.2f}", f"{slope(of, *lengths[-2:]):.2f}"]
        shown.add_row(name, *(f"{1000 * of[n]:.2f}" for n in lengths), *own, PAPER.get(name, ("n² d", "", ""))[0])
    console.print(shown)
    counted = Table("layer", *(f"steps, n {n}" for n in COUNTED), "paper", *(f"path, n {n}" for n in COUNTED), "paper", title="counted")
    by_step: dict[str, Callable[[int], nn.Module]] = {
        "self-attention": lambda i: Attention(8),
        "recurrence (LSTM)": lambda i: Recurrence(8, by_cell=True),
        f"convolution, k {KERNEL}": lambda i: Convolution(8, KERNEL**i),  # dilated, so that the fewest layers join all positions
    }
    for name, make in by_step.items():
        chains = [steps(make(0), n, 8) for n in COUNTED]
        # Within a recurrent layer the first position reaches the last one through all cells.
        recurrent = isinstance(make(0), Recurrence)
        paths = [n if recurrent else path(make, n, 8) for n in COUNTED]
        counted.add_row(name, *map(str, chains), PAPER[name][1], *map(str, paths), PAPER[name][2])
    console.print(counted)
    print(
        f"Self-attention is n² d and, for its projections, n d²: with d {options.d} the former leads from n far above d on. Its weights,"
        " n² numbers, then leave the cache, which can lift the exponent above 2.\n"
        "A step of an LSTM is several operations, so its chain is a multiple of n."
    )


if __name__ == "__main__":
    main()
