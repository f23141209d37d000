"""How fast a training goes and on what its time is spent: a table beside the checkpoints, never part of a result."""

import resource
from pathlib import Path

import torch

from nmt.training import Trainer


class Speed:
    """Writes, for each new row of the training table, how fast the training went and on what the time was spent, to `path`.

    Columns: update, seconds since the row before, target tokens a second (validation and checkpoints left out of the time), the shares of
    the time, in percent, and peak memory in GiB.
    """

    NOW_AND_THEN = ("validation", "checkpoint")
    SHARES = ("data", "compute", "waiting", "exchange", *NOW_AND_THEN)

    def __init__(self, path: Path, trainer: Trainer) -> None:
        self.path, self.trainer = path, trainer
        self.rows, self.tokens, self.rate = len(trainer.state.rows), trainer.state.tokens, 0.0
        trainer.clock.take()  # of the start
        if not path.exists():
            path.write_text("\t".join(("update", "seconds", "tokens_per_second", *self.SHARES, "memory")) + "\n", encoding="utf-8")

    def look(self) -> None:
        """Write a row if the table has a new one."""
        state = self.trainer.state
        if len(state.rows) == self.rows:
            return
        spent = self.trainer.clock.take()
        seconds = sum(spent.values())
        self.rate = (state.tokens - self.tokens) / (seconds - sum(spent.get(name, 0) for name in self.NOW_AND_THEN))
        self.rows, self.tokens = len(state.rows), state.tokens
        shares = [f"{100 * spent.get(name, 0) / seconds:.1f}" for name in self.SHARES]
        fields = [str(state.step), f"{seconds:.1f}", f"{self.rate:.0f}", *shares, f"{peak_memory(self.trainer.device):.2f}"]
        with self.path.open("a", encoding="utf-8") as table:
            table.write("\t".join(fields) + "\n")

    def __str__(self) -> str:
        return f", {self.rate:,.0f} tokens/s" if self.rate else ""


def peak_memory(device: torch.device) -> float:
    """GiB that this process has held at most: of the GPU where it computes on one, else of main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
