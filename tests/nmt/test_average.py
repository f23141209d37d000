"""The mean of checkpoints, and what is refused (§6.1)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.average import AverageConfig, average
from nmt.checkpoint import WEIGHTS, Checkpoint, build_model, save_checkpoint
from nmt.config import parse
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from tests.copy_task import MODEL, TRAIN, VOCAB

STATE: dict[str, Any] = {"seed": 1, "vocab_size": VOCAB, "model": MODEL, "train": {**TRAIN, "checkpoint_every": 200}}
Saved = Callable[..., Checkpoint]


def weights(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return Transformer(ModelConfig.model_validate(MODEL), VOCAB).state_dict()


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Writes a checkpoint of update `step` with random weights of their own, or those given."""

    def save(step: int, tensors: dict[str, Tensor] | None = None, **changed: Any) -> Checkpoint:
        return save_checkpoint(tmp_path, weights(step) if tensors is None else tensors, None, {"step": step, **STATE, **changed})

    return save


def test_each_weight_is_the_mean_rounded_once(saved: Saved) -> None:
    checkpoints = [saved(step) for step in (200, 400, 600)]
    found = average(checkpoints)
    assert found.keys() == weights(0).keys()
    for name, tensor in found.items():
        mean = np.mean([weights(step)[name].double().numpy() for step in (200, 400, 600)], axis=0)
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), mean.astype(np.float32))


def test_one_checkpoint_is_its_own_average(saved: Saved) -> None:
    found = average([saved(200)])
    assert all(torch.equal(tensor, weights(200)[name]) for name, tensor in found.items())


def test_bfloat16_weights_are_summed_in_more_than_bfloat16(saved: Saved) -> None:
    """256 + 1 is 256 in bfloat16, so a sum kept in it would give 256 / 4."""
    tensors = [torch.tensor([number], dtype=torch.bfloat16) for number in (256.0, 1.0, 1.0, 2.0)]
    checkpoints = [saved(200 * place, {"weight": tensor, "place": torch.tensor([float(place)])}) for place, tensor in enumerate(tensors)]
    found = average(checkpoints)["weight"]
    assert (found.dtype, found.item()) == (torch.bfloat16, 65.0)


def test_the_shared_matrix_stays_one(saved: Saved) -> None:
    found = average([saved(200), saved(400)])
    assert [name for name, tensor in found.items() if VOCAB in tensor.shape] == ["embedding.weight"]
    model = build_model(STATE, found, "average")
    assert model.logits(torch.eye(MODEL["d_model"])).T.equal(model.embedding.weight)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 2), ("vocab_size", VOCAB + 1), ("model", {**MODEL, "dropout": 0.2}), ("train", {**STATE["train"], "warmup_updates": 21})],
)
def test_checkpoints_of_two_runs_are_refused_with_what_differs(key: str, value: Any, saved: Saved) -> None:
    checkpoints = [saved(200), saved(400), saved(600, **{key: value})]
    with pytest.raises(UserError, match=rf"step-00000600 is of another run than .*step-00000200: their {key} differ$"):
        average(checkpoints)


def test_the_same_checkpoint_twice_is_refused_also_under_another_name(saved: Saved) -> None:
    first, second, renamed = saved(200), saved(400), saved(600, weights(200))
    for twice in ([first, second, second], [first, second, renamed]):
        with pytest.raises(UserError, match=r"checkpoints to average are the same: .*step-00000200"):
            average(twice)


@pytest.mark.parametrize("steps", [(200, 201, 202), (200, 400, 450), (301, 400), (400, 200)])
def test_checkpoints_within_a_few_updates_of_each_other_are_refused(steps: tuple[int, ...], saved: Saved) -> None:
    with pytest.raises(UserError, match=r"lie closer than half of train\.checkpoint_every \(200\)") as error:
        average([saved(step) for step in steps])
    assert str(list(steps)) in str(error.value)


def test_the_last_one_may_lie_as_close_as_the_parameters_allow(saved: Saved) -> None:
    average([saved(200), saved(400), saved(500)])


def test_a_damaged_checkpoint_is_refused(saved: Saved) -> None:
    checkpoints = [saved(200), saved(400)]
    path = checkpoints[0].folder / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"step-00000200/model\.safetensors is damaged"):
        average(checkpoints)


def test_an_average_of_none_is_a_parameter_error() -> None:
    with pytest.raises(UserError, match=r"^variants\.tiny\.average\.last is 0: it must be at least 1$"):
        parse(AverageConfig, {"last": 0}, "variants.tiny.average")
