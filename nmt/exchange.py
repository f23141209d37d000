"""Gradients that travel while the backward pass still computes: on GPUs, where to send is but to queue.

The gradients of the last piece become final one after the other, roughly from the last layer to the first. They are gathered in
buckets, and the sum of a full bucket over the processes is queued beside the backward pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.ranks import Ranks

BUCKET = 32 << 20  # bytes of gradients that travel together


class Exchange:
    """The sum of the gradients over all pieces and processes, as `nmt.ranks.tree_sum` and `Ranks.sum_tree` have it, with the same bits.

    `earlier` are the sums of this process's pieces before the last, as its tree holds them; the first `holders` processes have
    pieces. Within the `with` block comes the backward pass of the last piece; `total` is complete behind the block. All processes must
    make one alike.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], earlier: Sequence[list[Tensor]], ranks: Ranks, holders: int, step: int) -> None:
        self.parameters, self.earlier, self.ranks, self.holders, self.step = parameters, earlier, ranks, holders, step
        self.total: list[Tensor] = [torch.empty(0)] * len(parameters)
        self.waiting = buckets(parameters)  # the first is the next to go
        self.final: set[int] = set()
        device = parameters[0].device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __enter__(self) -> "Exchange":
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(lambda parameter, number=number: self._add(number, parameter.grad))
            for number, parameter in enumerate(self.parameters)
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        if kind is not None:
            return
        for number, parameter in enumerate(self.parameters):
            if number not in self.final:  # this process had no last piece
                self._add(number, torch.zeros_like(parameter))
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _add(self, number: int, gradient: Tensor) -> None:
        """Take the gradient of the last piece for the parameter of this number, and send the buckets that are full with it."""
        for sums in reversed(self.earlier):
            gradient = sums[number].add_(gradient)
        self.total[number] = gradient
        self.final.add(number)
        while self.waiting and self.final.issuperset(self.waiting[0]):
            tensors = [self.total[number] for number in self.waiting.pop(0)]
            if self.stream:
                self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.ranks.sum_tree(tensors, self.holders, self.step)


def buckets(parameters: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the parameters, last first, in runs of about BUCKET bytes."""
    runs: list[list[int]] = []
    room = 0
    for number in reversed(range(len(parameters))):
        if room <= 0:
            runs.append([])
            room = BUCKET
        runs[-1].append(number)
        room -= parameters[number].nbytes
    return runs
