"""How fast a training goes and on what its time is spent: a table beside the checkpoints, never part of a result."""

import resource
from pathlib import Path

import torch

from nmt.batches import Update
from nmt.operations import batch_lengths, product_rate, training_operations
from nmt.training import Trainer


class Speed:
    """Writes, for each new row of the training table, how fast the training went and on what the time was spent, to `path`.

    Columns: update; seconds since the row before; target tokens a second, validation and checkpoints left out of the time; utilisation, the
    operations of this process's pieces as a share of what a plain product reaches here in that time; the share of padding in these pieces;
    the shares of all time; and peak memory in GiB. Shares are in percent.
    """

    NOW_AND_THEN = ("validation", "checkpoint")
    SHARES = ("data", "compute", "waiting", "exchange", *NOW_AND_THEN)

    def __init__(self, path: Path, trainer: Trainer) -> None:
        self.path, self.trainer = path, trainer
        self.rows, self.tokens, self.rate = len(trainer.state.rows), trainer.state.tokens, 0.0
        self.peak = product_rate(trainer.config.precision, trainer.device)
        self.operations, self.real, self.places = 0.0, 0, 0
        trainer.clock.take()  # of the start
        if not path.exists():
            columns = ("update", "seconds", "tokens_per_second", "utilisation", "padding", *self.SHARES, "memory")
            path.write_text("\t".join(columns) + "\n", encoding="utf-8")

    def look(self, update: Update) -> None:
        """Count the pieces of an update that was done; write a row if the table of the training has a new one."""
        state = self.trainer.state
        for batch in update.pieces.values():
            lengths = batch_lengths(batch)
            self.operations += training_operations(self.trainer.model_config, self.trainer.model.vocab_size, lengths)
            self.real += sum(map(sum, lengths))
            self.places += batch.src.numel() + batch.tgt_out.numel()
        if len(state.rows) == self.rows:
            return
        spent = self.trainer.clock.take()
        seconds = sum(spent.values())
        working = seconds - sum(spent.get(name, 0) for name in self.NOW_AND_THEN)
        self.rate = (state.tokens - self.tokens) / working
        shares = [self.operations / working / self.peak, 1 - self.real / max(self.places, 1)]
        shares += [spent.get(name, 0) / seconds for name in self.SHARES]
        fields = [str(state.step), f"{seconds:.1f}", f"{self.rate:.0f}", *(f"{100 * share:.1f}" for share in shares)]
        with self.path.open("a", encoding="utf-8") as table:
            table.write("\t".join([*fields, f"{peak_memory(self.trainer.device):.2f}"]) + "\n")
        self.rows, self.tokens = len(state.rows), state.tokens
        self.operations, self.real, self.places = 0.0, 0, 0

    def __str__(self) -> str:
        return f", {self.rate:,.0f} tokens/s" if self.rate else ""


def peak_memory(device: torch.device) -> float:
    """GiB that this process has held at most: of the GPU where it computes on one, else of main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
