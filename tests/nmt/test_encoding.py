import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.encoding import dealt


@given(st.integers(0, 100), st.integers(0, 50), st.integers(1, 9))
def test_where_a_pair_goes_depends_on_its_number_alone(first: int, count: int, shards: int) -> None:
    assert dealt(first, count, shards).tolist() == dealt(0, first + count, shards)[first:].tolist()


@given(st.integers(0, 200), st.integers(1, 9))
def test_each_round_gives_every_shard_one_pair(count: int, shards: int) -> None:
    found = dealt(0, count, shards)
    for start in range(0, count - shards + 1, shards):
        assert sorted(found[start : start + shards]) == list(range(shards))
    assert max(np.bincount(found, minlength=shards)) - min(np.bincount(found, minlength=shards)) <= 1


@pytest.mark.parametrize("period", [3, 6, 7, 12])
def test_what_repeats_in_the_text_does_not_gather_in_a_shard(period: int) -> None:
    """Of every `period`-th pair each of 6 shards gets a sixth, within 5 deviations of the binomial distribution."""
    found = np.bincount(dealt(0, 60_000 * period, 6)[::period], minlength=6)
    assert abs(found - 10_000).max() < 5 * (60_000 * 1 / 6 * 5 / 6) ** 0.5
