"""nmt.operations: what is counted, against the products that PyTorch counts and against arithmetic."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.batches import collate
from nmt.loss import batch_sums
from nmt.model import ModelConfig, Transformer
from nmt.operations import batch_lengths, product_rate, training_operations

CONFIG = ModelConfig(layers=2, d_model=16, d_ff=48, heads=2, d_k=4, d_v=6, dropout=0.0, positions="sinusoidal")


@pytest.mark.parametrize(("src", "tgt"), [(5, 5), (3, 9), (8, 1)])
def test_operations_are_those_of_the_products_that_pytorch_counts(src: int, tgt: int) -> None:
    batch = collate([([4] * (src - 1), [4] * (tgt - 1))] * 8)  # no padding, and no filling
    model = Transformer(CONFIG, 50).train()
    with FlopCounterMode(display=False) as counter:
        loss, _ = batch_sums(model, batch, 0.1, "float32")
        loss.backward()
    assert training_operations(CONFIG, 50, batch_lengths(batch)) == counter.get_total_flops()


def test_a_token_of_base_takes_six_operations_a_weight_and_a_little_more_for_attention() -> None:
    base = ModelConfig(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1, positions="sinusoidal")
    weights = (
        6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048) + 37000 * 512
    )  # of the products, as many src as tgt tokens
    found = training_operations(base, 37000, [(26, 26)] * 100) / 2600
    assert 6 * weights < found < 6.1 * weights


def test_lengths_do_not_count_padding() -> None:
    lengths = [(3, 4), (1, 2), (5, 1), *[(2, 2)] * 30]
    pairs = [([4] * (s - 1), [4] * (t - 1)) for s, t in lengths]
    batch = collate(pairs)
    assert batch.src.size(0) > len(pairs)
    assert batch_lengths(batch) == lengths


def test_the_rate_of_a_product_is_measured() -> None:
    assert product_rate("float32", torch.device("cpu")) > 1e8
