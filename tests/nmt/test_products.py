"""nmt.products: each kind of product against the plain one, and a row alone against the same row among others."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer, attention
from nmt.products import AMX_FEW, FEW, LEAST_ROWS, MOST_ROWS, SMALL, Decoding, Int8, Packed, even

SHAPES = [(320, 960), (1280, 320), (320, 4000), (512, 2048), (2048, 512), (4096, 1024), (1200, 48)]  # columns in and out


@pytest.fixture(autouse=True)
def _without_gradients() -> object:
    with torch.inference_mode():
        yield


def layer(kind: str, wide: int, out: int, opposed: bool = False) -> Packed | Int8:
    """`opposed`: half of the columns are the negatives of the others, so that of the products of such `rows` rounding is left."""
    torch.manual_seed(1)
    weight, bias = torch.randn(out, wide) / wide**0.5, torch.randn(out)
    if opposed:
        first, second = halves(wide)
        weight[:, second], bias = -weight[:, first], bias * 0
    return Int8(weight, bias) if kind == "int8" else Packed(weight, bias, getattr(torch, kind))


def rows(kind: str, count: int, wide: int, opposed: bool = False) -> Tensor:
    torch.manual_seed(2)
    x = torch.randn(count, wide) * torch.rand(count, 1) * 5
    if opposed:
        first, second = halves(wide)
        x[:, second] = x[:, first]
    return x.bfloat16() if kind == "bfloat16" else x


def halves(wide: int) -> tuple[Tensor, Tensor]:
    """Of an even number of columns."""
    first, second = torch.randperm(wide, generator=torch.Generator().manual_seed(3)).chunk(2)
    return first, second


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("wide", "out"), SHAPES)
@pytest.mark.parametrize("opposed", [False, True])
def test_a_row_has_the_same_bits_among_however_many(kind: str, wide: int, out: int, opposed: bool) -> None:
    product, x, threads = layer(kind, wide, out, opposed), rows(kind, 1030, wide, opposed), torch.get_num_threads()
    by_threads = []
    try:
        for number in (1, 2, 3, 4, 8):
            torch.set_num_threads(number)
            whole = product(x)
            for count in (2, 4, 8, LEAST_ROWS, 18, 36, 66, 100, 224, 420):
                assert torch.equal(product(x[-count:].contiguous()), whole[-count:])
            assert torch.equal(product(x.view(10, 103, wide)), whole.view(10, 103, out))
            by_threads.append(whole)
    finally:
        torch.set_num_threads(threads)
    uneven = kind == "bfloat16" and torch.cpu._is_amx_tile_supported()
    assert all(torch.equal(whole, by_threads[0]) for whole in by_threads[: 4 if uneven else 5])


@pytest.mark.parametrize(("kind", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2), ("int8", 0.1)])
def test_a_product_is_the_plain_one_to_its_precision(kind: str, tolerance: float) -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(64, 48) / 48**0.5, torch.randn(64)
    x = rows(kind, 32, 48).float()
    found = layer(kind, 48, 64)(rows(kind, 32, 48)).float()
    scale = x.norm(dim=1, keepdim=True) / 48**0.5
    assert ((found - (x @ weight.T + bias)) / (scale + bias.abs())).abs().max() < tolerance


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_whatever_the_number_of_rows_a_product_is_prepared_for_few(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product, real, seen = layer(kind, 12, 8), (Int8 if kind == "int8" else Packed).product, set()

    def watched(self: Packed | Int8, x: Tensor) -> Tensor:
        seen.add(len(x))
        return real(self, x)

    monkeypatch.setattr(type(product), "product", watched)
    for count in range(1, 3000, 7):
        assert product(rows(kind, count, 12)).shape == (count, 8)
    assert len(seen) <= 32 and max(seen) <= MOST_ROWS and min(seen) >= LEAST_ROWS


def test_few_numbers_of_rows_are_enough_and_hardly_more() -> None:
    assert FEW[0] == LEAST_ROWS and FEW[-1] == MOST_ROWS
    assert all(larger - smaller <= max(LEAST_ROWS, smaller / 8) for smaller, larger in pairwise(FEW))


@pytest.mark.parametrize(("wide", "out"), [*SHAPES, (1024, 256), (7, 5)])
def test_even_are_the_numbers_of_rows_that_change_no_bit(wide: int, out: int) -> None:
    found = even(wide, out, True, torch.get_num_threads())
    assert found and set(found) <= set(AMX_FEW)
    opposed = wide % 2 == 0
    product, x = layer("bfloat16", wide, out, opposed), rows("bfloat16", MOST_ROWS, wide, opposed)
    expected = torch.cat([product.product(block) for block in x.split(min(found))])
    for count in found:
        assert torch.equal(product.product(x[:count]), expected[:count])


def test_a_sum_in_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a product that adds the halves of its columns one after the other from 128 rows on."""
    real = Packed.product

    def other(self: Packed, x: Tensor) -> Tensor:
        if len(x) < 128:
            return real(self, x)
        middle = x.size(1) // 2
        left, right = x.clone(), x.clone()
        left[:, middle:], right[:, :middle] = 0, 0
        return (real(self, left).float() + real(self, right).float()).bfloat16()

    monkeypatch.setattr(Packed, "product", other)
    even.cache_clear()
    try:
        assert max(even(320, 64, False, torch.get_num_threads())) < 128
    finally:
        even.cache_clear()


def test_int8_is_exact_where_the_numbers_are_whole() -> None:
    weight = torch.tensor([[127.0, -3.0, 0.0], [1.0, 127.0, 2.0]])
    x = torch.tensor([[127.0, 1.0, -5.0], [0.0, -127.0, 9.0]]) * torch.tensor([[1.0], [0.25]])
    assert torch.equal(Int8(weight, None)(x), x @ weight.T)


def test_an_int8_row_of_zeros_gives_the_bias() -> None:
    bias = torch.tensor([1.0, -2.0])
    found = Int8(torch.ones(2, 3), bias)(torch.zeros(2, 3))
    assert torch.equal(found, bias.expand(2, 2))


@pytest.mark.parametrize(("heads", "d_k"), [(1, 64), (1, 16), (2, 4), (2, 256), (3, 24), (4, 16), (5, 64), (8, 64)])
@pytest.mark.parametrize("beams", [1, 3, 4, 16])
def test_attention_has_the_same_bits_for_as_few_sentences_as_are_enough(heads: int, d_k: int, beams: int) -> None:
    """With any number of threads; scores and results being sums of which rounding is left."""
    shape = ModelConfig(layers=1, d_model=8, d_ff=8, heads=heads, d_k=d_k, d_v=d_k, dropout=0, positions="sinusoidal")
    decoding = Decoding(Transformer(shape, 9), "float32", torch.device("cpu"))
    threads = torch.get_num_threads()
    for keys_of in (2 * beams, 8, 24, 1024, 1280):  # of the first own tokens, of a short source, of longer ones
        torch.manual_seed(4)
        queries, keys, values = (torch.randn(12, heads, count, d_k) for count in (beams, keys_of, keys_of))
        first, second = halves(d_k)
        queries[..., second], keys[..., second] = queries[..., first], -keys[..., first]
        first, second = halves(keys_of)
        values[:, :, second] = -values[:, :, first]
        expected = None
        try:
            for number in (1, 2, 3, 4):
                torch.set_num_threads(number)
                few = decoding.enough(beams * keys_of)
                assert few * heads * d_k * beams * keys_of > SMALL and few * heads >= max(2, number)
                for count in {few, few + 1, 12}:
                    found = attention(*(x.repeat(1 + few // 12, 1, 1, 1)[:count] for x in (queries, keys, values)), None)
                    expected = found if expected is None else expected
                    shared = min(len(found), len(expected), 12)
                    assert torch.equal(found[:shared], expected[:shared])
        finally:
            torch.set_num_threads(threads)


def test_preparing_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(5)
    model = Transformer(ModelConfig(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.1, positions="learned"), 9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for precision in ("float32", "bfloat16", "int8"):
        Decoding(model, precision, torch.device("cpu"))
    after = model.state_dict()
    assert model.training and before.keys() == after.keys()
    assert all(after[name].dtype == torch.float32 and torch.equal(after[name], tensor) for name, tensor in before.items())


def test_int8_on_a_gpu_is_refused() -> None:
    model = Transformer(ModelConfig(layers=1, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.1, positions="sinusoidal"), 9)
    with pytest.raises(UserError, match="int8 is for processors"):
        Decoding(model, "int8", torch.device("cuda"))
