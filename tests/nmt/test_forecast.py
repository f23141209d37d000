"""The forecast held against built models: their weights, the operations that PyTorch counts, the memory that they keep."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.batches import Batch, collate, updates
from nmt.forecast import (
    COMPONENTS,
    Work,
    activation_bytes,
    by_formula,
    counted,
    flop,
    gpu_time_cost,
    state_bytes,
    total,
)
from nmt.loss import batch_sums
from nmt.model import ModelConfig, Transformer
from nmt.training import TrainConfig, Trainer
from tests.copy_task import MODEL, TRAIN, write_corpus

V = 50
ODD = ModelConfig(layers=2, d_model=12, d_ff=20, heads=3, d_k=5, d_v=2, dropout=0.1, positions="learned")


def batch(rows: int, src: int, tgt: int) -> Batch:
    """Pairs of these lengths, end symbols counted, without padding."""
    rng = np.random.default_rng(1)
    ids = [(rng.integers(4, V, src - 1), rng.integers(4, V, tgt - 1)) for _ in range(rows)]
    return collate(ids)


def test_components_are_counted_as_the_formula_has_them() -> None:
    for config in (ODD, ODD.model_copy(update={"positions": "sinusoidal", "layers": 3})):
        assert counted(config, V) == by_formula(config, V)
        assert tuple(counted(config, V)) == COMPONENTS


def test_operations_are_those_that_pytorch_counts_forward_and_backward() -> None:
    model, work = Transformer(ODD, V), Work.of([7] * 4, [5] * 4)
    with FlopCounterMode(display=False) as counter:
        loss, _ = batch_sums(model, batch(4, 7, 5), 0.1, "float32")
        loss.backward()
    assert total(flop(ODD, V, work)) == counter.get_total_flops()


def test_an_update_of_base_takes_six_operations_a_parameter_and_token_and_little_more() -> None:
    """Of the paper's 100,000 updates that is 0.95e18, where 12 hours of 8 GPUs at 9.5 TFLOP/s are 3.3e18, and of big 2.3e19."""
    base = ModelConfig(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1, positions="sinusoidal")
    found = total(flop(base, 37000, Work.assumed(25000, 28)))
    assert found == pytest.approx(6 * 63.1e6 * 25000, rel=0.02)
    assert 100_000 * found == pytest.approx(0.95e18, rel=0.01)
    assert gpu_time_cost(12, 8) == pytest.approx(3.3e18, rel=0.01) and gpu_time_cost(3.5 * 24, 8) == pytest.approx(2.3e19, rel=0.01)


def test_the_average_update_is_that_of_the_training(tmp_path: Path) -> None:
    shards = write_corpus(tmp_path / "shards") / "train"
    plan = updates(shards, 100, 2, seed=1)
    found, seen = [], set()
    for update in plan:
        if seen & set(update.pairs):
            break  # the second epoch
        seen |= set(update.pairs)
        found.append(update)
    work = Work.of_shards(shards, 100)
    assert work.pairs == pytest.approx(len(seen) / len(found), rel=0.03)
    assert work.tgt == pytest.approx(sum(update.tokens for update in found) / len(found), rel=0.03)
    assert work.src == work.tgt and work.src_tgt == work.src_src == work.tgt_tgt
    assert work.src_src / work.pairs == pytest.approx(sum(n**2 for n in range(2, 8)) / 6, rel=0.1)  # 1 to 6 tokens, evenly, and the end


def test_weights_and_moments_are_what_a_training_holds(tmp_path: Path) -> None:
    trainer = Trainer(TrainConfig(**TRAIN), ModelConfig(**MODEL), V, 1, torch.device("cpu"))
    trainer.update(next(updates(write_corpus(tmp_path / "shards") / "train", 100, 2, 1)))
    weights = list(trainer.model.parameters())
    parts = state_bytes(sum(weight.numel() for weight in weights), 8)
    assert parts["weights"] == sum(weight.nbytes for weight in weights)
    state: Any = trainer.optimizer.state
    assert parts["moments"] == sum(state[weight][key].nbytes for weight in weights for key in ("exp_avg", "exp_avg_sq"))
    assert parts["gradients"] == 4 * parts["weights"]  # of 8 pieces: 1, of the next 1; of 2 and 2; of 4 and 4: at most four at one time


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activations_grow_by_the_pair_as_in_a_forward_pass_of_all(precision: str) -> None:
    model, kept = Transformer(ODD, V).train(), {}
    own = {weight.data_ptr() for weight in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        batch_sums(model, batch(16, 7, 5), 0.1, precision)
    expected = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)
    logits = 16 * 5 * V * 2 * (4 if precision == "float32" else 2)
    assert activation_bytes(ODD, V, 16, 7, 5, precision, 0.1) == pytest.approx(expected + logits, rel=0.01)
