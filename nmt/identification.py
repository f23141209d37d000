"""Which language a line is in, as py3langid tells it (extra `language`): 97 languages, from the bytes of the line alone."""

import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import Field

from nmt.config import Config, nearest
from nmt.errors import UserError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier


class LanguageRule(Config):
    """Section `corpora.*.cleaning.language`: when a side counts as being in another language."""

    min_characters: int = Field(ge=1)  # shorter lines are not judged: an interface's `OK` is in any language
    min_confidence: float = Field(ge=0, le=1)  # probability of the other language


def known(code: str) -> str:
    """The code by which py3langid knows the language `code` (pt of pt-BR). Raises UserError where it does not, or is not installed."""
    if find_spec("py3langid") is None:
        raise UserError(f"cleaning.language needs py3langid (extra language): {sys.executable} -m pip install 'py3langid>=0.4,<0.5'")
    plain = code.replace("_", "-").partition("-")[0].lower()
    codes = [str(label) for label in _identifier().labels]
    if plain not in codes:
        raise UserError(f"cleaning.language cannot tell {code}: {nearest(plain, codes)}; make it null")
    return plain


def is_other(line: str, code: str, rule: LanguageRule) -> bool:
    """Whether `line` is clearly in another language than `code`."""
    if len(line) < rule.min_characters:
        return False
    found, confidence = _identifier().classify(line)
    return bool(found != code and confidence >= rule.min_confidence)


@cache
def _identifier() -> "LanguageIdentifier":
    """Read once in each process."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
