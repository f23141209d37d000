"""nmt.batches: updates are a function of (seed, epoch), full, alike in length, and miss no pair."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.batches import GROUP_SHARDS, Batch, Update, ahead, collate, in_order, largest_piece, padded, plan_updates, rounded, updates
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.symbols import BOS, EOS, PAD
from tests.shards import write_shards

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)


def write(folder: Path, lengths: list[tuple[int, int]], size: int = 1000) -> Path:
    """Shards with pairs of these lengths, end symbols counted; all tokens of pair n are n + 10."""
    pairs = [([n + 10] * (src - 1), [n + 10] * (tgt - 1)) for n, (src, tgt) in enumerate(lengths)]
    write_shards(pairs, folder, 60_000, "0" * 64, size)
    return folder


def random_lengths(count: int, longest: int = 30, seed: int = 0) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    return [(int(src), int(tgt)) for src, tgt in rng.integers(2, longest + 1, (count, 2))]


def take(
    shards: Path, count: int, seed: int = 1, tokens: int = 100, microbatches: int = 3, after: int = 0, wanted: range | None = None
) -> list[Update]:
    return list(itertools.islice(updates(shards, tokens, microbatches, seed, after, wanted), count))


def epoch(shards: Path, pairs: int, seed: int = 1, tokens: int = 100) -> list[Update]:
    """The updates of the first epoch, which ends when so many pairs have been seen."""
    found = []
    for update in updates(shards, tokens, 3, seed):
        found.append(update)
        pairs -= len(update.pairs)
        if pairs <= 0:
            return found
    raise AssertionError


def equal(left: Batch, right: Batch) -> bool:
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in ("src", "tgt_in", "tgt_out"))


def same(left: list[Update], right: list[Update]) -> bool:
    return len(left) == len(right) and all(
        (a.pairs, a.tokens, list(a.pieces)) == (b.pairs, b.tokens, list(b.pieces)) and all(map(equal, a.pieces.values(), b.pieces.values()))
        for a, b in zip(left, right, strict=True)
    )


def pairs_in(piece: Batch) -> int:
    """Without the rows that fill it up."""
    return int((piece.tgt_out[:, 0] != PAD).sum())


def tokens(batch: Batch) -> tuple[int, int]:
    """Of its pairs, without what fills it up."""
    pairs = pairs_in(batch)
    return int((batch.src[:pairs] != PAD).sum()), int((batch.tgt_out[:pairs] != PAD).sum())


@given(LENGTHS, st.integers(30, 120), st.integers(0, 3))
def test_a_plan_has_every_pair_once_and_no_update_above_the_cap_on_either_side(lengths: list[tuple[int, int]], cap: int, seed: int) -> None:
    src, tgt = np.array(lengths).T
    plan = plan_updates(src, tgt, cap, np.random.default_rng(seed))
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    assert all(len(rows) and src[rows].sum() <= cap and tgt[rows].sum() <= cap for rows in plan)


@given(LENGTHS, st.integers(30, 120))
def test_updates_hold_neighbours_in_length_and_no_two_neighbours_could_be_one(lengths: list[tuple[int, int]], cap: int) -> None:
    src, tgt = np.array(lengths).T
    longer = np.maximum(src, tgt)
    plan = sorted(plan_updates(src, tgt, cap, np.random.default_rng(0)), key=lambda rows: (longer[rows].min(), longer[rows].max()))
    for shorter, next_one in itertools.pairwise(plan):
        assert longer[shorter].max() <= longer[next_one].min()
        together = np.concatenate([shorter, next_one])
        assert max(src[together].sum(), tgt[together].sum()) > cap


def test_updates_are_nearly_full_and_nearly_without_padding(tmp_path: Path) -> None:
    lengths = random_lengths(3000)
    found = epoch(write(tmp_path, lengths), 3000, tokens=300)
    fullest = [max(sum(tokens(piece)[side] for piece in update.pieces.values()) for side in (0, 1)) for update in found]
    assert max(fullest) <= 300 and sum(fullest) / len(fullest) > 0.9 * 300
    longer = [[max(lengths[1000 * shard + row]) for shard, row in update.pairs] for update in found]
    assert sum(map(sum, longer)) / sum(max(update) * len(update) for update in longer) > 0.95


@pytest.mark.parametrize("size", [1000, 60, 15])  # one shard, fewer shards than a group has, several groups
def test_an_epoch_has_every_pair_once_and_the_next_one_again_in_another_order(tmp_path: Path, size: int) -> None:
    count = 10 * GROUP_SHARDS + 73
    shards = write(tmp_path, random_lengths(count), size)
    first = epoch(shards, count)
    both = take(shards, 2 * len(first) + 20)
    seen = [(place, update) for update in range(len(both)) for place in both[update].pairs]
    everything = {(row // size, row % size) for row in range(count)}
    assert Counter(place for place, _ in seen[:count]) == Counter(everything)
    assert Counter(place for place, _ in seen[count : 2 * count]) == Counter(everything)
    assert [place for place, _ in seen[:count]] != [place for place, _ in seen[count : 2 * count]]
    assert {frozenset(update.pairs) for update in first} != {frozenset(update.pairs) for update in both[len(first) : 2 * len(first)]}


def test_pairs_are_what_stands_at_their_places_cut_into_pieces_in_order(tmp_path: Path) -> None:
    lengths = random_lengths(200)
    shards = write(tmp_path, lengths, size=70)
    for update in take(shards, 40):
        rows = [70 * shard + row for shard, row in update.pairs]
        assert 1 <= update.count <= 3 and list(update.pieces) == list(range(update.count))
        assert update.tokens == sum(piece.tokens for piece in update.pieces.values())
        expected = [([row + 10] * (lengths[row][0] - 1), [row + 10] * (lengths[row][1] - 1)) for row in rows]
        for piece in update.pieces.values():
            size = pairs_in(piece)
            assert size > 0
            assert equal(piece, collate(expected[:size]))
            del expected[:size]
        assert not expected


@pytest.mark.parametrize("microbatches", [1, 2, 8, 1000])
def test_pieces_differ_by_at_most_one_pair_and_there_are_as_many_as_asked_for_where_there_are_pairs(
    tmp_path: Path, microbatches: int
) -> None:
    for update in take(write(tmp_path, random_lengths(100)), 30, microbatches=microbatches):
        sizes = [pairs_in(piece) for piece in update.pieces.values()]
        assert len(sizes) == min(microbatches, len(update.pairs)) and max(sizes) - min(sizes) <= 1


def test_pieces_that_are_not_wanted_are_not_made_and_the_others_are_the_same(tmp_path: Path) -> None:
    shards = write(tmp_path, random_lengths(100))
    for update, other in zip(take(shards, 30), take(shards, 30, wanted=range(1, 3)), strict=True):
        assert (other.pairs, other.tokens, other.count) == (update.pairs, update.tokens, update.count)
        assert list(other.pieces) == [number for number in update.pieces if number in (1, 2)]
        assert all(equal(piece, update.pieces[number]) for number, piece in other.pieces.items())


def test_made_ahead_they_are_the_same_and_so_is_an_error(tmp_path: Path) -> None:
    shards = write(tmp_path, random_lengths(100))
    with ahead(updates(shards, 100, 3, 1)) as plan:
        assert same(list(itertools.islice(plan, 30)), take(shards, 30))
    with pytest.raises(UserError, match="has 30 tokens"), ahead(updates(shards, 20, 3, 1)) as plan:
        next(plan)


@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_the_largest_piece_is_that_of_the_first_epoch_and_later_ones_are_hardly_larger(tmp_path: Path, microbatches: int) -> None:
    def size(piece: Batch) -> int:
        return piece.src.numel() + piece.tgt_out.numel()

    shards = write(tmp_path, random_lengths(300), 70)  # one group
    largest = size(largest_piece(shards, 100, microbatches, seed=1))
    first = epoch(shards, 300)
    sizes = [size(piece) for update in take(shards, 5 * len(first), microbatches=microbatches) for piece in update.pieces.values()]
    assert largest == max(size(p) for u in take(shards, len(first), microbatches=microbatches) for p in u.pieces.values())
    assert max(sizes) <= 1.2 * largest


@pytest.mark.parametrize("size", [1000, 15])
def test_going_on_after_n_updates_is_the_same_as_skipping_them(tmp_path: Path, size: int) -> None:
    shards = write(tmp_path, random_lengths(150), size)
    from_the_start = take(shards, 80)  # more than two epochs
    for after in range(0, 70, 3):
        assert same(take(shards, 10, after=after), from_the_start[after : after + 10])


def test_a_plan_depends_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    shards = write(tmp_path, random_lengths(150), size=40)
    assert same(take(shards, 30, seed=1), take(shards, 30, seed=1))
    assert [u.pairs for u in take(shards, 30, seed=1)] != [u.pairs for u in take(shards, 30, seed=2)]


def test_the_number_of_pieces_does_not_change_what_an_update_holds(tmp_path: Path) -> None:
    shards = write(tmp_path, random_lengths(150))
    assert [u.pairs for u in take(shards, 30, microbatches=1)] == [u.pairs for u in take(shards, 30, microbatches=7)]


@pytest.mark.parametrize("length", [(101, 2), (2, 101)])
def test_a_pair_longer_than_an_update_is_refused_before_the_first_update_wherever_it_stands(
    tmp_path: Path, length: tuple[int, int]
) -> None:
    lengths = random_lengths(20 * GROUP_SHARDS)
    lengths[-1] = length
    shards = write(tmp_path, lengths, size=10)
    for seed in range(3):
        with pytest.raises(
            UserError, match=r"^train\.tokens_per_update is 100, but pair 9 of .*/00015\.arrow has 101 tokens: raise it, or"
        ):
            take(shards, 1, seed=seed)
    assert take(shards, 1, tokens=101)


def test_a_batch_begins_the_target_with_the_begin_symbol_and_ends_both_sides_with_the_end_symbol() -> None:
    batch = collate([([7, 8], [9]), ([5], [6, 4, 11]), ([], [])])
    assert batch.src.tolist() == [[7, 8, EOS], [5, EOS, PAD], [EOS, PAD, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 9, PAD, PAD], [BOS, 6, 4, 11], [BOS, PAD, PAD, PAD]]
    assert batch.tgt_out.tolist() == [[9, EOS, PAD, PAD], [6, 4, 11, EOS], [EOS, PAD, PAD, PAD]]
    assert {tensor.dtype for tensor in (batch.src, batch.tgt_in, batch.tgt_out)} == {torch.int64}


def test_sizes_are_rounded_up_by_an_eighth_at_most_to_few() -> None:
    sizes = [rounded(size) for size in range(1, 1025)]
    assert all(size <= found <= size * 9 / 8 for size, found in enumerate(sizes, 1)) and sizes == sorted(sizes)
    assert set(sizes) == {*range(1, 17), *(step * eighth for step in (2, 4, 8, 16, 32, 64) for eighth in range(9, 17))}


def test_a_batch_is_filled_up_with_padding_that_changes_no_loss() -> None:
    model = Transformer(ModelConfig(layers=2, d_model=8, d_ff=8, heads=2, d_k=4, d_v=4, dropout=0.0, positions="sinusoidal"), 50).double()
    pairs = [([5 + n] * (n % 17), [6 + n] * ((n * 7) % 19)) for n in range(33)]
    batch = collate(pairs)
    assert batch.src.shape == (36, 18) and batch.tgt_in.shape == batch.tgt_out.shape == (36, 20)
    assert [int(x) for x in (batch.tgt_out != PAD).sum(1)] == [len(target) + 1 for _, target in pairs] + [0] * 3
    assert batch.tokens == sum(len(target) + 1 for _, target in pairs)
    states = model(batch.src, batch.tgt_in)
    assert states.isfinite().all()
    for row, pair in enumerate(pairs):
        alone = collate([pair])
        torch.testing.assert_close(
            states[row, : len(pair[1]) + 1], model(alone.src, alone.tgt_in)[0, : len(pair[1]) + 1], rtol=1e-9, atol=1e-9
        )


def test_ids_of_any_unsigned_type_are_padded_without_loss() -> None:
    sentences = [np.array([65_535], np.uint16), np.array([4_000_000_000, 1], np.uint32)]
    assert padded(sentences).tolist() == [[65_535, EOS, PAD], [4_000_000_000, 1, EOS]]


@pytest.mark.parametrize("size", [1000, 30])
def test_in_order_has_every_pair_once_in_batches_of_at_most_so_many_padded_tokens(tmp_path: Path, size: int) -> None:
    lengths = [*random_lengths(100), (500, 3)]  # one pair alone is longer than a batch
    shards = write(tmp_path, lengths, size)
    batches = list(in_order(shards, 120))
    rows = [row for batch in batches for row in list(zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True))[: pairs_in(batch)]]
    assert Counter(tuple(len([i for i in side if i != PAD]) for side in row) for row in rows) == Counter(lengths)
    assert Counter(row[0][0] for row in rows) == Counter(range(10, 111))
    assert all(max(batch.src.numel(), batch.tgt_out.numel()) <= 120 or len(batch.src) == 1 for batch in batches)
    assert len(batches) < 0.5 * len(lengths)


def test_each_epoch_reads_its_own_shards_where_there_are_some_and_begins_again_with_the_first(tmp_path: Path) -> None:
    def ids(epoch: int) -> list[tuple[list[int], list[int]]]:
        return [([100 * epoch + row] * (3 + epoch), [7]) for row in range(10)]

    write_shards(ids(9), tmp_path / "s", 60_000, "0" * 64)
    for number in (1, 2):
        write_shards(ids(number), tmp_path / "s" / f"sampled-00{number - 1}", 60_000, "0" * 64)
    plan = itertools.islice(updates(tmp_path / "s", 200, 1, seed=1), 4)  # one update an epoch
    seen = [{int(piece.src[row, 0]) // 100 for piece in update.pieces.values() for row in range(10)} for update in plan]
    assert seen == [{1}, {2}, {1}, {2}]
    [resumed] = take(tmp_path / "s", 1, tokens=200, microbatches=1, after=3)
    assert int(resumed.pieces[0].src[0, 0]) // 100 == 2
    with pytest.raises(UserError, match="sampled-001.*has 6 tokens"):
        take(tmp_path / "s", 1, tokens=5)
