"""The tokens of the paper's BLEU: the Moses tokenizer's, compounds split at their hyphens, typographic quotes made plain.

Papers of 2014 to 2018 quote `multi-bleu.perl` over such text. It is no BLEU that compares across papers (Post 2018), but the one that
stands in Vaswani et al. 2017, Table 2. Each step changes the score, so each is counted apart.

    „Ein 28-jähriger Koch“, sagte er.
    tokens     „ Ein 28-jähriger Koch “ , sagte er .
    compounds  „ Ein 28 ##AT##-##AT## jähriger Koch “ , sagte er .
    quotes     " Ein 28 ##AT##-##AT## jähriger Koch " , sagte er .
"""

import re
from collections.abc import Sequence
from importlib.metadata import version

from sacremoses import MosesTokenizer

COMPOUND = re.compile(r"(\S)-(\S)")
QUOTES = str.maketrans(dict.fromkeys("„“”‟«»", '"') | dict.fromkeys("‚‘’‛‹›", "'"))


def moses_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Each line as the Moses tokenizer cuts it for `language` (a code; English rules where it has none), tokens between single spaces."""
    tokenizer = MosesTokenizer(language)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in lines]  # escaping renames tokens and counts the same


def split_compounds(line: str) -> str:
    """`line` with hyphens inside of words made tokens of their own, as the evaluation of tensor2tensor does it."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def plain_quotes(line: str) -> str:
    """`line` with typographic quotes and apostrophes as ASCII has them, which is how the paper's reference was written."""
    return line.translate(QUOTES)


def moses_name(language: str) -> str:
    """What stands for these tokens in a signature."""
    return f"moses-{language}-sacremoses-{version('sacremoses')}"
