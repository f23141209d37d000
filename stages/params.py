"""Reads one section of params.yaml, the way DVC reads it (YAML 1.2, so that 1e-9 is a number)."""

from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from nmt.config import Config, nearest, parse
from nmt.errors import UserError

C = TypeVar("C", bound=Config)
PARAMS = Path("params.yaml")


def load(section: str, kind: type[C]) -> C:
    """The section with the dotted name `section`, parsed as `kind`. Raises UserError for anything that is wrong in it."""
    return parse(kind, value(section), section)


def value(section: str) -> Any:
    """The plain value with the dotted name `section`. Raises UserError when the file or the name is missing."""
    found = read()
    walked: list[str] = []
    for part in section.split("."):
        walked.append(part)
        if not isinstance(found, dict) or part not in found:
            known = list(found) if isinstance(found, dict) else []
            raise UserError(f"{PARAMS}: there is no {'.'.join(walked)}: {nearest(part, [str(k) for k in known])}")
        found = found[part]
    return found


def read() -> Any:
    """The whole of params.yaml as plain dictionaries. Raises UserError for a missing or malformed file, or one without sections."""
    try:
        text = PARAMS.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{PARAMS} is not in {Path.cwd()}: run from the top of the project") from None
    except OSError as error:
        raise UserError(f"{PARAMS} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{PARAMS} is not UTF-8 text, from byte {error.start} on: save it as UTF-8") from None
    try:
        found = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{PARAMS}, line {mark.line + 1}, column {mark.column + 1}: this is not valid YAML, {error.problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:  # also a date of month 13, brackets a thousand deep
        raise UserError(f"{PARAMS} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UserError(f"{PARAMS} holds no sections: restore it, or write it anew")
    return found


def seed() -> int:
    """The seed of the whole run."""
    found = value("seed")
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 63:
        raise UserError(f"seed is {found!r}: a whole number from 0 to 2^63 - 1 is needed")
    return found
