"""nmt.exchange: gradients that are summed while the backward pass goes on have the bits of those that are summed afterwards."""

from pathlib import Path

import numpy as np
import pytest
import torch

import nmt.exchange
from nmt.batches import updates
from nmt.exchange import buckets
from nmt.ranks import Ranks
from nmt.training import ModelConfig, TrainConfig, Trainer
from tests.copy_task import MODEL, TRAIN, VOCAB, write_corpus
from tests.processes import CPU, in_processes

UPDATES = 3


def test_buckets_are_runs_from_the_last_parameter_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.exchange, "BUCKET", 100)
    sizes = [30, 2, 2, 25, 1, 24]  # numbers of 4 bytes
    assert buckets([torch.zeros(size) for size in sizes]) == [[5, 4], [3], [2, 1, 0]]


def trained(ranks: Ranks, shards: Path, microbatches: int, overlapping: bool, tokens: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """The weights after some updates, with buckets that hold a few parameters each."""
    nmt.exchange.BUCKET = 2000
    config = TrainConfig(**{**TRAIN, "microbatches": microbatches, "tokens_per_update": tokens})
    one = Trainer(config, ModelConfig(**MODEL), VOCAB, 1, CPU, ranks)
    one.overlapping = overlapping
    plan = updates(shards / "train", config.tokens_per_update, microbatches, 1, wanted=one.pieces)
    for _ in range(UPDATES):
        one.update(next(plan))
    return {name: tensor.numpy() for name, tensor in one.model.state_dict().items()}


def both_ways(ranks: Ranks, shards: Path, microbatches: int, tokens: int) -> list[dict[str, np.ndarray]]:  # type: ignore[type-arg]
    """Summed afterwards and summed meanwhile."""
    return [trained(ranks, shards, microbatches, overlapping, tokens) for overlapping in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "microbatches", "tokens"),
    [(2, 6, 100), pytest.param(2, 4, 100, marks=pytest.mark.essential), (4, 16, 12)],
    ids=["odd shares", "even shares", "fewer pairs than pieces"],
)
def test_summed_meanwhile_is_summed_afterwards(tmp_path: Path, size: int, microbatches: int, tokens: int) -> None:
    shards = write_corpus(tmp_path / "shards")
    for expected, found in in_processes(size, both_ways, shards, microbatches, tokens):
        assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def test_in_one_process_too(tmp_path: Path) -> None:
    shards = write_corpus(tmp_path / "shards")
    expected, found = both_ways(Ranks(), shards, 3, 100)
    assert all(np.array_equal(found[name], expected[name]) for name in found)
