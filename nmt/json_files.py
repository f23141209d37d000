"""JSON files that the pipeline wrote and reads again: whole ones, or a sentence that names the file and the way out."""

import json
from pathlib import Path
from typing import Any

from nmt.errors import UserError

WAY_OUT = "copy it anew, or have DVC bring it back with `dvc checkout`"


def read_object(path: Path, *names: str) -> dict[str, Any]:
    """The object in the file `path`. Raises UserError when there is none, or when it has not all of the `names`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {WAY_OUT}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged, for it is no JSON from line {error.lineno}, column {error.colno} on: {WAY_OUT}") from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError(f"{path} is damaged, for it is no JSON: {WAY_OUT}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged, for it holds no JSON object: {WAY_OUT}")
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path} is damaged, for it has no {', '.join(missing)}: {WAY_OUT}")
    return found
