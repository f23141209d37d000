from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.duplicates import keys_of, repeated


@given(st.lists(st.sampled_from("abcdefghij"), max_size=60), st.integers(1, 70), st.integers(1, 20))
def test_the_first_of_equal_things_stays_and_the_others_are_found(things: list[str], share: int, size: int) -> None:
    """Against a set that holds all; for any share sorted at a time and any pieces."""
    keys = keys_of(things)
    pieces = [keys[start : start + size] for start in range(0, len(things), size)]
    seen: set[str] = set()
    expected = []
    for thing in things:
        expected.append(thing in seen)
        seen.add(thing)
    assert repeated(lambda: iter(pieces), share).tolist() == expected


@pytest.mark.parametrize("shared", [0, 1])
def test_keys_that_agree_in_one_half_are_different(shared: int) -> None:
    keys = np.arange(20, dtype=np.uint64).reshape(10, 2)
    keys[:, shared] = 7
    assert not repeated(lambda: iter([keys])).any()
    assert repeated(lambda: iter([keys, keys])).tolist() == [False] * 10 + [True] * 10


def test_no_two_of_many_texts_have_one_key() -> None:
    keys = keys_of(f"{number}" for number in range(50_000))
    assert keys.shape == (50_000, 2)
    assert len(np.unique(keys[:, 0])) == len(np.unique(keys[:, 1])) == 50_000
    assert (keys_of(islice(map(str, range(50_000)), 7)) == keys[:7]).all()
