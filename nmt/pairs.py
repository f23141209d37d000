"""What every source of text gives: a stream of sentence pairs, each with its set and the part of the source it stands in."""

from dataclasses import dataclass
from typing import NamedTuple

from nmt.lines import Stripped

TRAIN, VALID = "train", "valid"


class Pair(NamedTuple):
    """One pair of lines. `part` names the file, archive member or document; the pairs of one part of a set come in a row."""

    set: str
    part: str
    src: str
    tgt: str


@dataclass
class Counted(Stripped):
    """What reading a source took off, replaced or left out: nothing of it is silent, all of it stands in the manifest."""

    line_breaks: int = 0
    without_partner: int = 0
