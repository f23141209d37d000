"""The raw text of a corpus and its manifest: every line as it came, and what it came from.

    raw/train.en  raw/train.de  raw/valid.en ...    UTF-8, each line ended by \\n, nothing else changed

    manifest.json
    {"languages": {"src": "en", "tgt": "de"},
     "source": {"kind": "files", "files": {"a.en": {"sha256": "9f86…", "bytes": 12}, …}},
     "sets": {"train": {"lines": 2, "sha256": {"en": "60303a…", "de": "c0535e…"}, "parts": [{"name": "a.en", "lines": 2}]}, …},
     "counted": {"boms": 0, "carriage_returns": 0, "line_breaks": 0, "without_partner": 0}}

The parts of a set (documents, archive members or files) stand in the order of their lines in the text.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config import Config
from nmt.errors import UserError
from nmt.pairs import Pair
from nmt.progress import Progress


class Part(Config):
    """So many successive lines of a set that come from one document, member or file."""

    name: str
    lines: int


class TextSet(Config):
    """One set: its number of lines, the SHA-256 of its text by language code, and where the lines come from."""

    lines: int
    sha256: dict[str, str]
    parts: list[Part]


class Manifest(Config):
    """The content of `manifest.json`; `source` is described by the component that brought the text."""

    languages: dict[str, str]
    source: dict[str, Any]
    sets: dict[str, TextSet]
    counted: dict[str, int]


def write_raw(pairs: Iterable[Pair], folder: Path, languages: tuple[str, str], sets: Sequence[str]) -> dict[str, TextSet]:
    """Write `pairs` as `folder`/<set>.<language>; returns the sets, in the order of `sets`, among them those that got no pair."""
    with ExitStack() as stack:
        texts = {name: [_Text(stack.enter_context((folder / f"{name}.{code}").open("wb"))) for code in languages] for name in sets}
        parts: dict[str, list[tuple[str, int]]] = {name: [] for name in sets}
        progress = stack.enter_context(Progress("write", None, "pairs"))
        for pair in pairs:
            progress.advance()
            for text, line in zip(texts[pair.set], (pair.src, pair.tgt), strict=True):
                text.write(line)
            found = parts[pair.set]
            if found and found[-1][0] == pair.part:
                found[-1] = (pair.part, found[-1][1] + 1)
            else:
                found.append((pair.part, 1))
    return {
        name: TextSet(
            lines=sum(lines for _, lines in parts[name]),
            sha256={code: text.hash.hexdigest() for code, text in zip(languages, texts[name], strict=True)},
            parts=[Part(name=part, lines=lines) for part, lines in parts[name]],
        )
        for name in sets
    }


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `manifest` as JSON."""
    path.write_text(json.dumps(manifest.model_dump(), ensure_ascii=False, indent=1) + "\n", "utf-8")


def read_manifest(path: Path) -> Manifest:
    """The manifest at `path`. Raises UserError when it is missing or is none."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing: it is written by the stage `fetch`") from None
    except ValueError:
        raise UserError(f"{path} is not a manifest, or is damaged: run the stage `fetch` again") from None


class _Text:
    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.hash = hashlib.sha256()

    def write(self, line: str) -> None:
        data = line.encode("utf-8") + b"\n"
        self.stream.write(data)
        self.hash.update(data)
