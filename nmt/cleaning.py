"""Which pairs are trained on. Every pair that is read is kept, or dropped by exactly one rule, the first that applies:

    blank                 a side shows nothing (`nmt.lines.is_blank`)
    control               a side holds a control character or U+FFFD          (if drop_control; white space is none)
    too_long              a side has more than max_words words or max_characters characters
    ratio                 one side has more than max_ratio times the words of the other
    letterless            a side has no letter: digits and punctuation alone  (if drop_letterless)
    script                too few letters of a side are of its `scripts`      (unless that is null)
    language              a side is clearly in another language               (unless `language` is null)
    identical             both sides are equal                                (if drop_identical)
    held_out              the source stands in valid or in a test set         (if drop_held_out)
    held_out_normalized   so it does but for case, width, punctuation         (if drop_held_out_normalized)
    duplicate             the same pair stands further up                     (if drop_duplicates)
    duplicate_source      the same source stands further up                   (if drop_duplicate_sources)

Words are what white space separates. The last two rules look at all pairs that the others leave (nmt/sieve.py), the others at one, here.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, Field

from nmt.config import Config
from nmt.identification import LanguageRule, is_other, known
from nmt.languages import Languages
from nmt.lines import is_blank, join_whitespace

RULES = (
    "blank",
    "control",
    "too_long",
    "ratio",
    "letterless",
    "script",
    "language",
    "identical",
    "held_out",
    "held_out_normalized",
    "duplicate",
    "duplicate_source",
)
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufffd]")  # all of Cc but white space, and what stands for broken text
LETTER = re.compile(r"[^\W\d_]")


def _known(name: str) -> str:
    if not any(unicodedata.name(chr(code), "").startswith(f"{name} ") for code in range(0x20000) if chr(code).isalpha()):
        raise ValueError(f"{name} begins no name of a letter in Unicode: LATIN, CYRILLIC, GREEK, ARABIC, CJK, … do")
    return name


Script = Annotated[str, AfterValidator(_known)]


class Scripts(Config):
    """Section `corpora.*.cleaning.scripts`: names of scripts as they begin Unicode's names of letters, LATIN or CYRILLIC, by side."""

    src: list[Script] = Field(min_length=1)
    tgt: list[Script] = Field(min_length=1)
    min_share: float = Field(gt=0, le=1)  # of the letters of a side


class CleaningConfig(Config):
    """Section `corpora.*.cleaning`."""

    join_whitespace: bool
    max_words: int = Field(ge=1)
    max_characters: int = Field(ge=1)
    max_ratio: float = Field(ge=1, allow_inf_nan=False)
    drop_control: bool
    drop_letterless: bool
    scripts: Scripts | None
    language: LanguageRule | None
    drop_identical: bool
    drop_held_out: bool
    drop_held_out_normalized: bool
    drop_duplicates: bool
    drop_duplicate_sources: bool


class Cleaner:
    """Judges pairs, each by itself. `held_out` are the source sentences of valid and of all test sets.

    Raises UserError where the rule `language` is on and cannot tell the `languages`.
    """

    def __init__(self, config: CleaningConfig, held_out: Iterable[str], languages: Languages) -> None:
        self.config = config
        self.languages = None if config.language is None else (known(languages.src), known(languages.tgt))
        self.held_out = {join_whitespace(line) for line in held_out}
        self.normalized = {normalized(line) for line in self.held_out} if config.drop_held_out_normalized else set()

    def prepare(self, line: str) -> str:
        """What is written of a line that is kept."""
        return join_whitespace(line) if self.config.join_whitespace else line

    def leaks(self, src: str) -> bool:
        """Whether this prepared source, white space aside, stands in valid or in a test set."""
        return (src if self.config.join_whitespace else join_whitespace(src)) in self.held_out

    def rule(self, src: str, tgt: str) -> str | None:
        """The rule that drops this pair of prepared lines by itself, or None."""
        config = self.config
        if is_blank(src) or is_blank(tgt):
            return "blank"
        if config.drop_control and (CONTROL.search(src) or CONTROL.search(tgt)):
            return "control"
        if len(src) > config.max_characters or len(tgt) > config.max_characters:
            return "too_long"
        words = (len(src.split()), len(tgt.split()))
        if max(words) > config.max_words:
            return "too_long"
        if max(words) > config.max_ratio * min(words):
            return "ratio"
        if config.drop_letterless and not (LETTER.search(src) and LETTER.search(tgt)):
            return "letterless"
        if config.scripts is not None and not (
            in_scripts(src, config.scripts.src, config.scripts.min_share) and in_scripts(tgt, config.scripts.tgt, config.scripts.min_share)
        ):
            return "script"
        if config.language and self.languages:
            if is_other(src, self.languages[0], config.language) or is_other(tgt, self.languages[1], config.language):
                return "language"
        if config.drop_identical and src == tgt:
            return "identical"
        if config.drop_held_out and self.leaks(src):
            return "held_out"
        if self.normalized and normalized(src) in self.normalized:
            return "held_out_normalized"
        return None


def normalized(line: str) -> str:
    """`line` as two readers would call it the same: compatible forms joined, without case, punctuation, symbols and spaces.

    A line of nothing but those stands for itself.
    """
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", line).casefold()) or line


def in_scripts(line: str, scripts: Iterable[str], min_share: float) -> bool:
    """Whether at least `min_share` of the letters of `line` are of one of the `scripts`; true of a line without letters."""
    wanted = set(scripts)
    letters = LETTER.findall(line)
    return sum(_script(letter) in wanted for letter in letters) >= min_share * len(letters)


@cache
def _script(letter: str) -> str:
    """The first word of the letter's name in Unicode; of a full-width letter the second."""
    return unicodedata.name(letter, "UNNAMED").removeprefix("FULLWIDTH ").split(" ")[0].split("-")[0]
