"""Choosing what is held out from the training text, by the hash of a name or of a sentence.

The choice depends on nothing but the key itself: it is the same for any order of the text and stays when text is
added. Equal keys go to the same set, so a sentence that occurs twice cannot stand on both sides.

    sha256(key), read as a fraction of [0, 1):   0 ... valid ... valid + test ................ 1
                                                  valid |  test  |           train
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Self

from pydantic import Field, model_validator

from nmt.config import Config
from nmt.pairs import TRAIN, VALID, Pair


class HeldOut(Config):
    """Section `corpora.*.held_out`: shares of the whole that valid and test get, and the least number of test pairs."""

    valid: float = Field(ge=0, lt=1)
    test: float = Field(ge=0, lt=1)
    min_test_lines: int = Field(ge=1)

    @model_validator(mode="after")
    def _leave_something(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid and test are {self.valid + self.test} together, which leaves nothing to train on")
        return self


def set_of(key: str, held_out: HeldOut, test: str) -> str:
    """The set that `key` falls into: valid, `test` (the name of the test set) or train."""
    place = int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "big") / 2**64
    if place < held_out.valid:
        return VALID
    return test if place < held_out.valid + held_out.test else TRAIN


def hold_out_lines(pairs: Iterable[Pair], held_out: HeldOut, test: str) -> Iterator[Pair]:
    """`pairs` with the training pairs shared out by their source sentences; pairs of other sets stay where they are."""
    for pair in pairs:
        yield pair._replace(set=set_of(pair.src, held_out, test)) if pair.set == TRAIN else pair
