import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nmt.heldout import HeldOut, hold_out_lines, set_of
from nmt.pairs import Pair

CONFIG = HeldOut(valid=0.1, test=0.2, min_test_lines=1)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_set_follows_from_the_sha256_of_the_key(key: str) -> None:
    place = int(hashlib.sha256(key.encode()).hexdigest(), 16) / 2**256
    assert set_of(key, CONFIG, "t") == ("valid" if place < 0.1 else "t" if place < 0.1 + 0.2 else "train")


def test_shares_of_many_keys_are_those_asked_for() -> None:
    found = [set_of(str(n), CONFIG, "t") for n in range(20_000)]
    for name, share in (("valid", 0.1), ("t", 0.2), ("train", 0.7)):
        assert abs(found.count(name) / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


def test_equal_sources_fall_on_the_same_side_and_other_sets_stay() -> None:
    pairs = [Pair("train", "p", f"s{n % 50}", str(n)) for n in range(200)] + [Pair("valid", "p", f"s{n}", "x") for n in range(50)]
    found = list(hold_out_lines(pairs, HeldOut(valid=0.0, test=0.3, min_test_lines=1), "t"))
    assert [pair[1:] for pair in found] == [pair[1:] for pair in pairs]
    assert {pair.src for pair in found if pair.set == "train"}.isdisjoint(pair.src for pair in found if pair.set == "t")
    assert {pair.set for pair in found[:200]} == {"train", "t"} and {pair.set for pair in found[200:]} == {"valid"}


def test_shares_must_leave_something_to_train_on() -> None:
    with pytest.raises(ValidationError, match="leaves nothing to train on"):
        HeldOut(valid=0.5, test=0.5, min_test_lines=1)
