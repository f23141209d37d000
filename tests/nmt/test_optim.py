"""Learning rate and Adam held against the paper's formula and a computation by hand (§5.3)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from torch import nn

from nmt.config import parse
from nmt.errors import UserError
from nmt.optim import adam, adam_step, learning_rate
from nmt.training import TrainConfig

VARIANTS = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "params.yaml").read_text("utf-8"))["variants"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 512**-0.5 / 4000**1.5),  # the first update has one 4000th of the peak
        (2000, 0.5 * (512 * 4000) ** -0.5),
        (4000, (512 * 4000) ** -0.5),
        (8000, (512 * 8000) ** -0.5),
        (16000, 0.5 * (512 * 4000) ** -0.5),  # four times the warmup: half the peak
        (100_000, 0.2 * (512 * 4000) ** -0.5),
    ],
)
def test_the_rate_is_the_papers_formula(step: int, expected: float) -> None:
    assert learning_rate(step, 512, 4000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (256, 400), (16, 1)])
def test_the_rate_rises_by_equal_steps_to_the_end_of_the_warmup_and_falls_from_there(d_model: int, warmup: int) -> None:
    rates = [learning_rate(step, d_model, warmup) for step in range(1, 3 * warmup + 2)]
    assert np.allclose(np.diff([0, *rates[:warmup]]), rates[0], rtol=1e-9)
    assert np.argmax(rates) == warmup - 1
    assert (np.diff(rates[warmup - 1 :]) < 0).all()


@pytest.mark.parametrize(("name", "peak"), [("base", 6.99e-4), ("big", 4.94e-4), ("big-en-fr", 4.94e-4)])
def test_peaks_of_the_papers_models(name: str, peak: float) -> None:
    """1 / sqrt(512 * 4000) = 1 / 1431.08 and 1 / sqrt(1024 * 4000) = 1 / 2023.86."""
    variant = VARIANTS[name]
    warmup = variant["train"]["warmup_updates"]
    assert learning_rate(warmup, variant["model"]["d_model"], warmup) == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize("name", ["base", "big", "big-en-fr"])
def test_adam_has_the_papers_numbers(name: str) -> None:
    train = VARIANTS[name]["train"]
    assert (train["adam_beta1"], train["adam_beta2"], train["adam_epsilon"]) == (0.9, 0.98, 1e-9)


@pytest.mark.parametrize("warmup", [0, -4000])
def test_a_warmup_below_one_is_a_parameter_error(warmup: int) -> None:
    with pytest.raises(UserError, match=rf"^variants\.base\.train\.warmup_updates is {warmup}: it must be at least 1"):
        parse(TrainConfig, {**VARIANTS["base"]["train"], "warmup_updates": warmup}, "variants.base.train")


def test_adam_steps_are_those_computed_by_hand() -> None:
    """Kingma and Ba 2015, algorithm 1, with an epsilon so large that its place shows."""
    beta1, beta2, epsilon = 0.9, 0.98, 0.05
    model = nn.Linear(3, 2, bias=False).double()
    weight = model.weight.detach().numpy().copy()
    optimizer = adam(model, beta1, beta2, epsilon)
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    rng = np.random.default_rng(0)
    for step in range(1, 5):
        gradient = rng.normal(size=weight.shape)
        rate = learning_rate(step, 512, 2)
        model.weight.grad = torch.from_numpy(gradient.copy())
        skipped = model.weight.detach().clone()
        adam_step(optimizer, rate, torch.tensor(False))  # neither the weights nor the moments nor the count of steps know of it
        assert torch.equal(model.weight, skipped)
        adam_step(optimizer, rate, torch.tensor(True))
        first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
        weight -= rate * first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
        np.testing.assert_allclose(model.weight.detach(), weight, rtol=1e-10, atol=1e-12)


def test_adam_moves_every_weight_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    optimizer = adam(model, 0.9, 0.98, 1e-9)
    before = [weight.detach().clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))  # no rate was set yet
    adam_step(optimizer, 0.1, torch.tensor(True))
    assert all((weight < old).all() for weight, old in zip(model.parameters(), before, strict=True))
