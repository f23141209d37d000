"""Sums over pieces and processes: the same bits wherever the tree is cut; processes that hang or vanish are named."""

import re
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.errors import UserError
from nmt.ranks import Ranks, joined, partial_sums, tree_sum
from tests.processes import CPU, in_processes


def parts(count: int) -> list[list[Tensor]]:
    """Numbers of very different size, so that another order of addition gives other bits."""
    generator = torch.Generator().manual_seed(count)
    return [
        [torch.randn(shape, generator=generator) * 10 ** torch.randn(shape, generator=generator) for shape in ((40, 3), (50,))]
        for _ in range(count)
    ]


def by_definition(leaves: list[list[Tensor]]) -> list[Tensor]:
    """The left half of the tree is the largest power of two that leaves something for the right."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return [left + right for left, right in zip(by_definition(leaves[:half]), by_definition(leaves[half:]), strict=True)]


def same(left: list[Tensor] | None, right: list[Tensor] | None) -> bool:
    return left is not None and right is not None and all(map(torch.equal, left, right))


@pytest.mark.parametrize("count", range(1, 18))
def test_parts_are_added_pairwise_neighbours_first(count: int) -> None:
    assert same(tree_sum(iter(parts(count))), by_definition(parts(count)))


def test_the_parts_are_such_that_the_order_of_addition_matters() -> None:
    one_by_one = parts(8)[0]
    for part in parts(8)[1:]:
        one_by_one = [a + b for a, b in zip(one_by_one, part, strict=True)]
    assert not same(tree_sum(parts(8)), one_by_one)


@pytest.mark.parametrize("count", range(17))
def test_on_the_way_the_tree_holds_a_sum_for_each_power_of_two_in_the_number_of_parts(count: int) -> None:
    leaves = iter(parts(count))
    runs = [[next(leaves) for _ in range(1 << power)] for power in reversed(range(5)) if count & 1 << power]
    found = partial_sums(parts(count))
    assert len(found) == len(runs) and all(same(sums, by_definition(run)) for sums, run in zip(found, runs, strict=True))


def test_nothing_has_no_sum() -> None:
    assert tree_sum([]) is None


@pytest.mark.parametrize("pieces", [1, 3, 5, 8])
@pytest.mark.parametrize("each", [1, 2, 4])
def test_a_tree_that_is_cut_at_a_power_of_two_has_the_same_sum(pieces: int, each: int) -> None:
    shares = [tree_sum(parts(pieces)[start : start + each]) for start in range(0, pieces, each)]
    assert same(tree_sum(share for share in shares if share), tree_sum(parts(pieces)))


def test_one_process_has_everything_and_exchanges_nothing() -> None:
    alone = Ranks()
    tensor = torch.ones(2)
    alone.meet(1)
    alone.sum(tensor, 1)
    alone.sum_tree([tensor], 1, 1)
    alone.check_same("this")
    assert alone.first and alone.share_of(3) == range(3) and tensor.tolist() == [1, 1]
    assert alone.any(True, 1) and not alone.any(False, 1) and alone.from_first({"a": 1}) == {"a": 1}


def exchange(ranks: Ranks, pieces: int) -> dict[str, Any]:
    per_rank = 2
    mine = parts(pieces)[ranks.rank * per_rank : (ranks.rank + 1) * per_rank]
    gradients = tree_sum(mine) or [torch.full_like(tensor, 7) for tensor in parts(pieces)[0]]
    ranks.meet(1)
    ranks.sum_tree(gradients, -(-pieces // per_rank), 1)
    losses = torch.zeros(8, dtype=torch.float64)
    losses[ranks.rank] = 0.1 * (ranks.rank + 1)
    ranks.sum(losses, 1)
    return {
        "gradients": [tensor.numpy() for tensor in gradients],
        "losses": losses.tolist(),
        "share": list(ranks.share_of(2 * ranks.size)),
        "any": (ranks.any(ranks.rank == 1, 1), ranks.any(False, 1)),
        "first": ranks.from_first(f"from {ranks.rank}"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("size", "pieces"), [(2, 4), (2, 1), (3, 6), pytest.param(4, 7, marks=pytest.mark.essential)])
def test_processes_end_up_with_the_bits_of_one(size: int, pieces: int) -> None:
    expected = tree_sum(parts(pieces))
    found = in_processes(size, exchange, pieces)
    assert sorted(number for one in found for number in one["share"]) == list(range(2 * size))
    for one in found:
        assert same([torch.from_numpy(array) for array in one["gradients"]], expected)
        assert one["losses"] == [0.1 * (rank + 1) for rank in range(size)] + [0.0] * (8 - size)
        assert one["any"] == (True, False) and one["first"] == "from 0"


def differ(ranks: Ranks) -> None:
    ranks.check_same("like the others" if ranks.rank < 2 else "other")


@pytest.mark.slow
def test_a_process_with_other_data_is_named() -> None:
    found = in_processes(3, differ)
    assert found[:2] == [None, None] and found[2].startswith("process 2 has other parameters, data or code than process 0")


def hang(ranks: Ranks, silent: int) -> None:
    if ranks.rank == silent:
        time.sleep(6)
    else:
        ranks.meet(57)


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
def test_a_process_that_does_not_come_is_named_with_the_update(silent: int) -> None:
    found = in_processes(3, hang, silent, patience=2)
    told = [sentence for rank, sentence in enumerate(found) if rank != silent]
    named = rf"^process {int(silent == 0)} ends in update 57, for process {silent} has not come that far within the seconds of hardware"
    assert any(re.search(named, sentence) for sentence in told), found
    assert all("update 57" in sentence and "\n" not in sentence for sentence in told)


@pytest.mark.slow
def test_a_group_that_is_not_complete_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.ranks.MEETING_SECONDS", 2)
    for name, value in dict(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="9").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"^process 1 of 2 did not find the others at 127\.0\.0\.1:9 within 2 s: "), joined(CPU, 60):
        pass
