"""The training loop. Update n is a function of (seed, n) and of the state before it, so that a run that was stopped at any
moment and goes on from a checkpoint ends with the same bytes as one that was never stopped.
"""

import logging
import math
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from nmt.batches import Batch, Update, ahead, largest_piece, updates
from nmt.checkpoint import (
    OPTIMIZER,
    WEIGHTS,
    Checkpoint,
    DamagedCheckpoint,
    build_model,
    checkpoints,
    open_checkpoint,
    save_checkpoint,
    step_of,
)
from nmt.clock import Clock
from nmt.config import Config, parse
from nmt.errors import UserError
from nmt.exchange import Exchange
from nmt.loss import batch_sums
from nmt.model import COMPILATION, ModelConfig, Transformer
from nmt.optim import adam, adam_step, learning_rate
from nmt.ranks import Ranks, partial_sums, tree_sum
from nmt.validation import HeldOutLoss, held_out_loss, perplexity

log = logging.getLogger(__name__)

ROWS_PER_CHECKPOINT = 10  # lines of training.tsv from one checkpoint to the next
SKIPPED_IN_A_ROW = 10  # updates without finite gradients before the run stops

Row = dict[str, float | int | None]


class TrainConfig(Config):
    """Section `variants.<v>.train`, §5."""

    updates: int = Field(ge=1)
    tokens_per_update: int = Field(ge=1)
    microbatches: int = Field(ge=1)
    warmup_updates: int = Field(ge=1)
    label_smoothing: float = Field(ge=0, lt=1)
    adam_beta1: float = Field(ge=0, lt=1)
    adam_beta2: float = Field(ge=0, lt=1)
    adam_epsilon: float = Field(gt=0, allow_inf_nan=False)
    checkpoint_every: int = Field(ge=1)
    checkpoints_kept: int = Field(ge=1)
    patience: Annotated[int, Field(ge=1)] | None  # checkpoints
    precision: Literal["float32", "bfloat16"]

    @model_validator(mode="after")
    def _checkpoints_fit(self) -> Self:
        rest = self.updates % self.checkpoint_every
        if self.updates > self.checkpoint_every and 0 < rest < self.checkpoint_every / 2:
            raise ValueError(
                f"the last checkpoint, at updates ({self.updates}), would be only {rest} updates behind the one before it: "
                f"make updates a multiple of checkpoint_every ({self.checkpoint_every}), or at least half of that more"
            )
        written = math.ceil(self.updates / self.checkpoint_every)
        if self.checkpoints_kept > written:
            raise ValueError(f"checkpoints_kept is {self.checkpoints_kept}, but the run writes only {written}")
        if self.patience is not None and self.checkpoints_kept > self.patience + 1:
            raise ValueError(
                f"checkpoints_kept is {self.checkpoints_kept}, but with a patience of {self.patience} the run may end after "
                f"{self.patience + 1} checkpoints: raise patience to {self.checkpoints_kept - 1} or more"
            )
        return self

    def is_scheduled(self, step: int) -> bool:
        """Whether a checkpoint is due at update `step`: at each multiple of checkpoint_every and at the end."""
        return step % self.checkpoint_every == 0 or step == self.updates

    def end(self, rows: Sequence[Row]) -> int:
        """The update at which a run with these rows of the training table ends: `updates`, or before it where `patience` runs out.

        It runs out at the checkpoint that is the `patience`-th one in a row whose valid loss is not below the best before them.
        """
        best, since = math.inf, 0
        for row in rows:
            loss = row["valid_loss"]
            if loss is None:
                continue
            best, since = (loss, 0) if loss < best else (best, since + 1)
            if since == self.patience:
                return min(int(row["update"] or 0), self.updates)
        return self.updates

    def kept_steps(self, end: int) -> list[int]:
        """Steps of the checkpoints that a run leaves behind which ends at update `end`."""
        last = range(self.checkpoint_every, end + 1, self.checkpoint_every)[-self.checkpoints_kept :]
        return sorted({*last, end})[-self.checkpoints_kept :]


@dataclass
class Interval:
    """Sums since the last row of the training table."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0


@dataclass
class State:
    """What a run knows besides weights and moments. Saved in each checkpoint's state."""

    step: int = 0
    tokens: int = 0  # target tokens seen, end symbols counted
    skipped: int = 0  # updates that were not applied since their gradients were not finite
    skipped_in_a_row: int = 0  # of these, the ones since the last update that was applied
    interval: Interval = field(default_factory=Interval)
    rows: list[Row] = field(default_factory=list)  # of training.tsv


class Stopped(Exception):
    """The run was asked to stop; its state is saved at update `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at update {step}, which is saved: the same command goes on from there")
        self.step = step


class Diverged(UserError):
    """The gradients of SKIPPED_IN_A_ROW updates one after the other were not finite."""


class Outcome:
    """What update `step` came to, on its way from the device. Reading it waits for that update, and not for those queued behind it."""

    def __init__(self, step: int, update: Update, values: Tensor) -> None:
        self.step, self.update = step, update
        self._values = values.to("cpu", non_blocking=True)
        self._arrival = torch.cuda.Event() if values.is_cuda else None
        if self._arrival:
            self._arrival.record()

    def values(self) -> list[float]:
        """The sums of loss and negative log likelihood, and the norm of the gradient."""
        if self._arrival:
            self._arrival.synchronize()
        return cast(list[float], self._values.tolist())


class Trainer:
    """A model, its optimizer and its place in the training."""

    def __init__(
        self,
        config: TrainConfig,
        model_config: ModelConfig,
        vocab_size: int,
        seed: int,
        device: torch.device,
        ranks: Ranks = Ranks(),  # noqa: B008  (immutable)
        compiled: bool = False,
    ) -> None:
        """`compiled`: the model's layers by torch.compile, once for all layers and shapes. The same to rounding."""
        self.config, self.model_config, self.seed, self.device, self.ranks = config, model_config, seed, device, ranks
        self.compiled = compiled
        self.overlapping = ranks.size > 1 and device.type == "cuda"  # processors have no hands free to send while they compute
        torch.manual_seed(seed)
        self.model = Transformer(model_config, vocab_size)
        self.state = State()
        self.clock = Clock()
        self._place()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from `checkpoint`, which needs its moments unless at the end. Raises UserError when it is damaged or of another model."""
        self.model = build_model(checkpoint.state, checkpoint.weights(), str(checkpoint.folder))
        self._place()
        saved = checkpoint.state["progress"]
        self.state = State(**{**saved, "interval": Interval(**saved["interval"])})
        if self.ended:
            return
        moments = checkpoint.moments()
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(checkpoint.state["adam_step"])).to(self.device),
                "exp_avg": moments[f"exp_avg.{name}"].to(self.device),
                "exp_avg_sq": moments[f"exp_avg_sq.{name}"].to(self.device),
            }

    def update(self, update: Update) -> dict[str, float]:
        """`apply` one update and `read` what it came to."""
        return self.read(self.apply(update))

    def apply(self, update: Update) -> "Outcome":
        """Apply one update, unless its gradient is not finite. A GPU may still be at work on it afterwards: read the outcome later.

        Each process computes its share of the pieces; afterwards all have the same sums and the same weights.
        """
        step = self.state.step + 1
        sums = torch.zeros(self.config.microbatches, 2, dtype=torch.float64, device=self.device)  # loss and nll of each piece
        holders = -(-update.count // len(self.pieces))  # processes with pieces in this update, which may have fewer than there are
        add_up = self._add_up_meanwhile if self.overlapping else self._add_up
        gradients = add_up(step, update, sums, holders)
        self.ranks.sum(sums, step)
        self.clock.spent("exchange")
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.get_total_norm(gradients)
        loss, nll = sums.sum(0)
        adam_step(self.optimizer, self.rate(step), applied=norm.isfinite() & loss.isfinite())
        self.state.step = step
        self.state.tokens += update.tokens
        self.clock.spent("compute")
        return Outcome(step, update, torch.stack([loss, nll, norm.double()]))

    def read(self, outcome: "Outcome") -> dict[str, float]:
        """The sums of an update once they are there: loss (nan if it was not applied), nll, tokens, gradient_norm. Counts skipped ones."""
        loss, nll, norm = outcome.values()
        if math.isfinite(norm) and math.isfinite(loss):
            self.state.skipped_in_a_row = 0
        else:
            loss = math.nan
            self.state.skipped += 1
            self.state.skipped_in_a_row += 1
        self.clock.spent("compute")
        return {"loss": loss, "nll": nll, "tokens": outcome.update.tokens, "gradient_norm": norm}

    @property
    def ended(self) -> bool:
        """Whether the run is at its end, as the first process knows it, which alone validates."""
        return self.state.step >= self.config.end(self.state.rows)

    @property
    def pieces(self) -> range:
        """The numbers of the pieces that this process computes."""
        return self.ranks.share_of(self.config.microbatches)

    def _add_up(self, step: int, update: Update, sums: Tensor, holders: int) -> list[Tensor]:
        """The gradient of an update, in the order of the parameters; loss and nll of the pieces of this process go into `sums`."""
        gradients = tree_sum(self._gradient(step, update, piece, sums) for piece in update.pieces)
        if gradients is None:
            gradients = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        self.clock.spent("compute")
        self.ranks.meet(step)
        self.clock.spent("waiting")
        self.ranks.sum_tree(gradients, holders, step)
        return gradients

    def _add_up_meanwhile(self, step: int, update: Update, sums: Tensor, holders: int) -> list[Tensor]:
        """As `_add_up`, with the same bits; what is final travels while the last piece is computed."""
        pieces = list(update.pieces)
        earlier = partial_sums(self._gradient(step, update, piece, sums) for piece in pieces[:-1])
        self.clock.spent("compute")
        self.ranks.meet(step)
        self.clock.spent("waiting")
        with Exchange(list(self.model.parameters()), earlier, self.ranks, holders, step) as exchange:
            for piece in pieces[-1:]:
                self._gradient(step, update, piece, sums)
        self.clock.spent("compute")
        return exchange.total

    def _gradient(self, step: int, update: Update, piece: int, sums: Tensor) -> list[Tensor]:
        """The gradient of a piece by itself, in the order of the parameters; its loss and nll go into `sums`."""
        self.optimizer.zero_grad(set_to_none=True)
        self.generator.manual_seed(_seed(self.seed, step, piece))
        batch = update.pieces[piece].to(self.device)
        loss, nll = batch_sums(self.model, batch, self.config.label_smoothing, self.config.precision)
        loss.backward(torch.full_like(loss, 1 / update.tokens))
        sums[piece] = torch.stack([loss.detach(), nll])
        return [cast(Tensor, parameter.grad) for parameter in self.model.parameters()]

    def rehearse(self, batch: Batch) -> None:
        """Compute on a piece and forget it, so that too little memory shows before the training and not at some later update."""
        loss, _ = batch_sums(self.model, batch.to(self.device), self.config.label_smoothing, self.config.precision)
        loss.backward(torch.zeros_like(loss))
        self.optimizer.zero_grad(set_to_none=True)

    def rate(self, step: int) -> float:
        """The learning rate of update `step`."""
        return learning_rate(step, self.model_config.d_model, self.config.warmup_updates)

    def saving(self, folder: Path) -> Callable[[], Checkpoint]:
        """What writes a checkpoint of this moment, from which `resume` goes on, to `folder` when it is called, now or later."""
        weights = {name: _copy(tensor) for name, tensor in self.model.state_dict().items()}
        moments = {}
        for name, parameter in self.model.named_parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                moment = self.optimizer.state[parameter].get(key, torch.zeros_like(parameter))
                moments[f"{key}.{name}"] = _copy(moment)
        state = {
            "step": self.state.step,
            "seed": self.seed,
            "vocab_size": self.model.vocab_size,
            "model": self.model_config.model_dump(),
            "train": self.config.model_dump(),
            "adam_step": self.state.step - self.state.skipped,
            "progress": asdict(self.state),
        }
        return partial(save_checkpoint, folder, weights, moments, state)

    def _place(self) -> None:
        self.model.to(self.device).train()
        if self.compiled:
            for layer in (*self.model.encoder, *self.model.decoder):
                layer.compile(**COMPILATION)
        self.generator = torch.Generator(self.device)
        self.model.generator = self.generator
        self.optimizer = adam(self.model, self.config.adam_beta1, self.config.adam_beta2, self.config.adam_epsilon)


def train(
    trainer: Trainer,
    shards: Path,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[State, Update], None] = lambda state, update: None,
) -> None:
    """Train on the folder `shards` until the configured number of updates, or until patience runs out, leaving checkpoints in `folder`.

    `report` is called after each update, with the pieces of this process in it. When `stop` says so in some process, the update at hand is
    finished and saved and Stopped raised. The first process alone validates, writes and warns. Raises Diverged.
    """
    config, state, ranks = trainer.config, trainer.state, trainer.ranks
    row_every = max(1, config.checkpoint_every // ROWS_PER_CHECKPOINT)
    plan = updates(shards / "train", config.tokens_per_update, config.microbatches, trainer.seed, state.step, trainer.pieces)
    ended = trainer.ended
    if not ended:
        trainer.rehearse(largest_piece(shards / "train", config.tokens_per_update, config.microbatches, trainer.seed))
    outcomes: deque[Outcome] = deque()  # of updates that are not read yet: the last one, so that a GPU has work while it is read
    with _Behind() as behind, ahead(plan) as plan_ahead:
        while not ended:
            update = next(plan_ahead)
            trainer.clock.spent("data")
            outcomes.append(trainer.apply(update))
            stopping = ranks.any(stop(), state.step)
            checkpoint_due = config.is_scheduled(state.step)
            row_due = checkpoint_due or state.step % row_every == 0
            while len(outcomes) > (0 if row_due or stopping else 1):
                gradient_norm = _count(trainer, outcomes.popleft())
            if ranks.first and row_due:
                valid = held_out_loss(trainer.model, shards / "valid", trainer.device, config.precision) if checkpoint_due else None
                trainer.clock.spent("validation")
                state.rows.append(_row(state, trainer.rate(state.step), gradient_norm, valid))
                state.interval = Interval()
            report(state, update)
            ended = trainer.ended if config.patience is None else ranks.any(ranks.first and trainer.ended, state.step)
            stopping = stopping and not ended
            behind.check()
            if ranks.first and (checkpoint_due or stopping):
                behind.do(partial(_save, trainer.saving(folder), folder, config))
            trainer.clock.spent("checkpoint")
            if stopping:
                raise Stopped(state.step)


def _count(trainer: Trainer, outcome: Outcome) -> float:
    """Read an outcome and add it to the interval's sums. Returns the norm of the gradient. Raises Diverged."""
    sums = trainer.read(outcome)
    state = trainer.state
    if math.isfinite(sums["loss"]):
        state.interval.loss += sums["loss"]
        state.interval.nll += sums["nll"]
        state.interval.tokens += int(sums["tokens"])
    else:
        if trainer.ranks.first:
            log.warning("update %d is skipped: its loss or gradient is not finite", outcome.step)
        if state.skipped_in_a_row == SKIPPED_IN_A_ROW:
            places = ", ".join(f"{shard}:{row}" for shard, row in outcome.update.pairs[:10])
            raise Diverged(
                f"training diverged: the gradients of {SKIPPED_IN_A_ROW} updates up to {outcome.step} were not finite "
                f"(shard:row of its first pairs: {places}); raise train.warmup_updates or look at these pairs"
            )
    return sums["gradient_norm"]


class _Behind:
    """Work in another thread while the training goes on, one piece at a time. What it raises is raised here."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.last: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin `work` when the one before it is done."""
        if self.last:
            self.last.result()
        self.last = self.pool.submit(work)

    def check(self) -> None:
        """Raise what the work at hand has raised so far."""
        if self.last and self.last.done():
            self.last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.pool.shutdown()
        if self.last and (error is None or isinstance(error, Stopped)):  # else the error is what counts
            self.last.result()


def resumable(folder: Path, config: TrainConfig) -> Checkpoint | None:
    """The newest whole checkpoint in `folder` from which the run can go on, or None where it must begin anew.

    It lies within the run, has its moments unless it is the last, and every checkpoint before it that the run is to leave
    behind is there too. It was scheduled when it was written if it is now: only then is the table up to it the same.
    A damaged one is passed over with a warning.
    """
    found: dict[int, Checkpoint] = {}
    for path in checkpoints(folder):
        try:
            checkpoint = open_checkpoint(path)
            checkpoint.verify(WEIGHTS)
            found[checkpoint.step] = checkpoint
        except DamagedCheckpoint as error:
            log.warning("%s; training goes on without this checkpoint", error)
    for step, checkpoint in reversed(found.items()):
        planned = parse(TrainConfig, checkpoint.state["train"], f"{checkpoint.folder}: train")
        end = config.end(checkpoint.state["progress"]["rows"])
        # Where patience may end the run soon, nobody knows yet which of those so far it is to leave behind.
        kept = config.kept_steps(end if config.patience is None else step)
        if (
            step > end
            or planned.is_scheduled(step) != config.is_scheduled(step)
            or any(earlier not in found for earlier in kept if earlier <= step)
        ):
            continue
        try:
            if step < end:
                checkpoint.verify(OPTIMIZER)
            return checkpoint
        except DamagedCheckpoint as error:
            log.warning("%s; training goes on without this checkpoint", error)
    return None


def _save(write: Callable[[], Checkpoint], folder: Path, config: TrainConfig) -> None:
    _prune(folder, config, write().step)


def _prune(folder: Path, config: TrainConfig, step: int) -> None:
    """Of the checkpoints up to `step` keep this one and the last two scheduled ones whole, and the weights that the run is to leave behind.

    Later ones, which a longer run wrote before, stay as they are.
    """
    found = [path for path in checkpoints(folder) if step_of(path) <= step]
    scheduled = [path for path in found if config.is_scheduled(step_of(path))]
    for path in found:
        if step_of(path) == step or path in scheduled[-2:]:
            continue
        if path in scheduled[-config.checkpoints_kept :]:
            (path / OPTIMIZER).unlink(missing_ok=True)
        else:
            shutil.rmtree(path)


def _row(state: State, rate: float, gradient_norm: float, valid: HeldOutLoss | None) -> Row:
    interval = state.interval
    measured = interval.tokens > 0  # some update of the interval was applied
    return {
        "update": state.step,
        "tokens": state.tokens,
        "loss": interval.loss / interval.tokens if measured else None,
        "perplexity": perplexity(interval.nll / interval.tokens) if measured else None,
        "valid_loss": valid.loss if valid else None,
        "valid_perplexity": valid.perplexity if valid else None,
        "learning_rate": rate,
        "gradient_norm": gradient_norm if math.isfinite(gradient_norm) else None,
        "skipped": state.skipped,
    }


def _copy(tensor: Tensor) -> Tensor:
    """A copy in main memory, contiguous."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _seed(*key: int) -> int:
    """A 63-bit seed that is a function of `key`."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
