"""The processes of one training and how their sums travel: in one fixed tree, whatever the number of processes.

An update has so many pieces. Each process computes a run of them, and their gradients are added pairwise, neighbours first:

    pieces       0   1   2   3   4   5   6   7
                  (01)    (23)    (45)    (67)         one process, or two, four, eight
                      (0123)          (4567)           that each hold a run of the pieces
                            (01234567)

Floating-point addition is commutative but not associative, so the sum has equal bits wherever the tree is cut, as long as a
process has 1, 2, 4, 8, … pieces. With another number it is equal to rounding.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nmt.errors import UserError

MEETING_SECONDS = 45  # within which all processes must have found one another, and SPARE_SECONDS more where torch does not keep to it
SPARE_SECONDS = 10
NETWORKS = "where machines have several networks, name the one between them in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class Ranks:
    """Process `rank` of `size`. With one process, the default, nothing travels."""

    rank: int = 0
    size: int = 1
    patience: float = 600.0  # seconds for which a process may keep the others waiting
    control: Any = None  # process group for what lies in main memory
    data: Any = None  # process group for what lies on the devices; the same where these are processors

    @property
    def first(self) -> bool:
        """Whether this process is the one that validates, writes and reports."""
        return self.rank == 0

    def share_of(self, pieces: int) -> range:
        """The numbers of this process's pieces. `size` must divide `pieces`."""
        each = pieces // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def meet(self, step: int) -> None:
        """Wait until all processes have come as far as update `step`. Raises UserError that names the ones that did not."""
        if self.size == 1:
            return
        with self._naming(step):
            dist.monitored_barrier(self.control, timedelta(seconds=self.patience), wait_all_ranks=True)

    def sum_tree(self, tensors: list[Tensor], holders: int, step: int) -> None:
        """Replace `tensors` by their sum over the first `holders` processes, with the same bits in all processes.

        Processes behind those take part with tensors of the same shapes, whose values do not matter.
        """
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._naming(step):
            if holders == self.size and self.size & (self.size - 1) == 0:
                self._by_halves(flat)
            else:
                self._to_first(flat, holders)
                dist.broadcast(flat, 0, self.data)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def sum(self, tensor: Tensor, step: int) -> None:
        """Replace `tensor` by its sum over the processes, exact where all but one hold 0."""
        if self.size > 1:
            with self._naming(step):
                dist.all_reduce(tensor, group=self.data)

    def any(self, condition: bool, step: int) -> bool:
        """Whether `condition` holds in some process."""
        if self.size == 1:
            return condition
        found = torch.tensor(int(condition))
        with self._naming(step):
            dist.all_reduce(found, dist.ReduceOp.MAX, self.control)
        return bool(found)

    def from_first(self, value: Any) -> Any:
        """What the first process calls `value`, as a copy."""
        if self.size == 1:
            return value
        held = [value]
        with self._naming(0):
            dist.broadcast_object_list(held, 0, self.control)
        return held[0]

    def check_same(self, value: str) -> None:
        """Raise UserError unless `value`, which sums up parameters, data and code, is the same in all processes."""
        if value != self.from_first(value):
            raise UserError(f"process {self.rank} has other parameters, data or code than process 0: they must see the same files")

    def _by_halves(self, flat: Tensor) -> None:
        """The tree for 2, 4, 8, … holders, all at work: neighbours swap halves, and each goes on with the sum of one half.

        On the way back they swap what is finished. So each process sends 2 (size - 1) / size of `flat`, and none all of it several times.
        """
        begin, end, distance = 0, len(flat), 1
        parents = []
        while distance < self.size:
            parents.append((begin, end))
            middle = (begin + end) // 2
            mine, theirs = slice(begin, middle), slice(middle, end)
            if self.rank & distance:
                mine, theirs = theirs, mine
            flat[mine] += self._swap(flat[theirs], flat[mine], distance)
            begin, end = mine.start, mine.stop
            distance *= 2
        while parents:
            distance //= 2
            whole = slice(*parents.pop())
            theirs = slice(end, whole.stop) if begin == whole.start else slice(whole.start, begin)
            flat[theirs] = self._swap(flat[begin:end], flat[theirs], distance)
            begin, end = whole.start, whole.stop

    def _swap(self, sent: Tensor, like: Tensor, distance: int) -> Tensor:
        """Send to the process at this distance in the tree and return what it sends, of the shape of `like`."""
        partner = self.rank ^ distance
        received = torch.empty_like(like)
        both = [dist.P2POp(dist.isend, sent, partner, self.data), dist.P2POp(dist.irecv, received, partner, self.data)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return received

    def _to_first(self, flat: Tensor, holders: int) -> None:
        distance = 1
        received = torch.empty_like(flat) if self.rank % 2 == 0 else flat
        while distance < holders:
            if self.rank % (2 * distance) == distance and self.rank < holders:
                dist.send(flat, self.rank - distance, self.data)
                return
            if self.rank % (2 * distance) == 0 and self.rank + distance < holders:
                dist.recv(received, self.rank + distance, self.data)
                flat += received
            distance *= 2

    @contextmanager
    def _naming(self, step: int) -> Iterator[None]:
        """Turn what torch raises when a process is gone or silent into a sentence that names it."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            found = re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier|waiting for send/recv from rank (0)", str(error))
            named = (found.group(1) or found.group(2)).strip() if found else str(1 - self.rank) if self.size == 2 else ""
            who = f"process {named}" if named else "another one"
            what = str(error).strip().splitlines()[0]
            if time.monotonic() - began < self.patience:
                raise UserError(f"process {self.rank} ends in update {step}, for {who} is gone ({what})") from None
            raise UserError(
                f"process {self.rank} ends in update {step}, for {who} has not come that far within the seconds of "
                f"hardware.patience: it hangs, or its machine is much slower than the others ({what})"
            ) from None


def is_rank() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def joined(device: torch.device, patience: float) -> Iterator[Ranks]:
    """Join the group that torchrun described in the environment, until the block ends. Without such a description this process is alone.

    Raises UserError when the processes have not found one another within MEETING_SECONDS. Where torch does not come back to say so (it
    waits for ever for a process that it has heard of and cannot reach) this process ends, with the sentence and code 2.
    """
    if not is_rank():
        yield Ranks()
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank > 0:
        patience += 2  # the first learns whom all are waiting for, so it gives up first
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    missed = f"process {rank} of {size} did not find the others at {place} within {MEETING_SECONDS} s"
    late = threading.Timer(MEETING_SECONDS + SPARE_SECONDS, _give_up, [missed])
    late.daemon = True
    late.start()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=MEETING_SECONDS))
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
        data = dist.new_group(backend="nccl", timeout=timedelta(seconds=patience)) if device.type == "cuda" else control
    except (RuntimeError, ValueError) as error:
        advice = f"; {NETWORKS}" if "connectFullMesh" in str(error) else ""
        raise UserError(f"{missed}: {str(error).splitlines()[0]}{advice}") from None
    finally:
        late.cancel()
    yield Ranks(rank, size, patience, control, data)
    dist.destroy_process_group()


def _give_up(missed: str) -> None:
    print(f"error: {missed}: they have heard of each other and cannot connect; {NETWORKS}", file=sys.stderr, flush=True)
    os._exit(2)


def tree_sum(parts: Iterable[list[Tensor]]) -> list[Tensor] | None:
    """The sum of `parts`, added pairwise in the order of the tree above, in the memory of the first; None without any.

    At most log2(n) + 1 of n parts exist at one time.
    """
    sums = partial_sums(parts)
    while len(sums) > 1:
        right = sums.pop()
        torch._foreach_add_(sums[-1], right)
    return sums[0] if sums else None


def partial_sums(parts: Iterable[list[Tensor]]) -> list[list[Tensor]]:
    """What the tree holds after `parts`: a sum for each power of two in their number, the largest first."""
    sums: list[list[Tensor]] = []
    for count, part in enumerate(parts, 1):
        sums.append(part)
        while count % 2 == 0:
            right = sums.pop()
            torch._foreach_add_(sums[-1], right)
            count //= 2
    return sums
