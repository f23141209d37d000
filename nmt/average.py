"""The mean of the last checkpoints' weights (§6.1)."""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field
from torch import Tensor

from nmt.checkpoint import Checkpoint
from nmt.config import Config
from nmt.errors import UserError


class AverageConfig(Config):
    """Section `variants.<v>.average`."""

    last: int = Field(ge=1)


def average(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Mean over `checkpoints` of each weight, summed in float64 and cast back once.

    Raises UserError unless they are different checkpoints of one run, well spaced: averaging checkpoints that lie
    almost on top of each other gains nothing.
    """
    _refuse_odd_sets(checkpoints)
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = checkpoint.weights()
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(checkpoints)).to(weights[name].dtype) for name, tensor in total.items()}


def _refuse_odd_sets(checkpoints: Sequence[Checkpoint]) -> None:
    first = checkpoints[0]
    for other in checkpoints[1:]:
        for key in ("seed", "vocab_size", "model", "train"):
            if other.state[key] != first.state[key]:
                raise UserError(f"{other.folder} is of another run than {first.folder}: their {key} differ")
    if len({c.sha256 for c in checkpoints}) < len(checkpoints):
        raise UserError(f"some of the checkpoints to average are the same: {', '.join(str(c.folder) for c in checkpoints)}")
    steps = [c.step for c in checkpoints]
    spacing = first.state["train"]["checkpoint_every"]
    if any(after - before < spacing / 2 for before, after in pairwise(steps)):
        raise UserError(
            f"the checkpoints to average are of updates {steps}, which lie closer than half of train.checkpoint_every ({spacing})"
        )
