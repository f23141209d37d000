"""Text from tar archives on the web, as WMT publishes it.

A member is read through the archive's stream by the name given in `params.yaml`; no archive is unpacked, so names that
climb out, links and additions of an operating system (`__MACOSX/._x`) lead nowhere. Members are plain or compressed
text, or SGML, of which each `<seg>` is one line:

    <seg id="1"> Tom &amp; Jerry </seg>    ->    Tom & Jerry
"""

import re
import tarfile
from array import array
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, Self, cast
from xml.sax.saxutils import unescape

from pydantic import Field, field_validator, model_validator

from nmt.alignment import misaligned
from nmt.config import Config, nearest
from nmt.errors import UserError
from nmt.lines import COMPRESSED, read_exact, stream_lines, write_lines
from nmt.pairs import Counted, Pair
from nmt.progress import Progress

QUOTES = {"&quot;": '"', "&apos;": "'"}


class Archive(Config):
    """Where a tar archive lies. A `sha256` of null: nobody published it, so that of the first download is kept and required."""

    url: str = Field(pattern=r"^https?://[^/]+/.*[^/]$")
    sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")


class MemberPair(Config):
    """The two members of an archive that hold the two sides of a text."""

    archive: str
    src: str
    tgt: str

    @field_validator("src", "tgt")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if name.startswith("/") or {"..", "__MACOSX"} & set(name.split("/")):
            raise ValueError(f"{name} is no plain name inside an archive")
        return name


class ArchivesSource(Config):
    """Section `corpora.*.source` of kind archives: archives by a name of our own, and for each set the members it consists of, in order."""

    kind: Literal["archives"]
    archives: dict[str, Archive] = Field(min_length=1)
    sets: dict[str, list[MemberPair]] = Field(min_length=1)

    @model_validator(mode="after")
    def _name_each_other(self) -> Self:
        named = [pair.archive for pairs in self.sets.values() for pair in pairs]
        for archive in named:
            if archive not in self.archives:
                raise ValueError(f"there is no archive {archive}: {nearest(archive, list(self.archives))}")
        if unused := self.archives.keys() - set(named):
            raise ValueError(f"no set uses the archive {min(unused)}")
        return self


def archive_pairs(source: ArchivesSource, paths: dict[str, Path], work: Path, counted: Counted) -> Iterator[Pair]:
    """The pairs of all sets, read from the archives at `paths`; `work` is an empty folder for the texts taken from them.

    Raises UserError for a damaged archive, a member that is missing or no file, and for two sides of unequal length.
    """
    texts: dict[tuple[str, str], Path] = {}
    for name, path in paths.items():
        members = sorted({m for pairs in source.sets.values() for p in pairs if p.archive == name for m in (p.src, p.tgt)})
        taken = {member: work / f"{name}.{number}" for number, member in enumerate(members)}
        _take(name, path, taken, counted)
        texts |= {(name, member): text for member, text in taken.items()}
    for pairs in source.sets.values():
        for pair in pairs:
            src, tgt = (array("I", map(len, read_exact(texts[pair.archive, member]))) for member in (pair.src, pair.tgt))
            if len(src) != len(tgt):
                raise misaligned(f"{pair.archive}:{pair.src}", src, f"{pair.archive}:{pair.tgt}", tgt)
    for set_name, pairs in source.sets.items():
        for pair in pairs:
            sides = (read_exact(texts[pair.archive, member]) for member in (pair.src, pair.tgt))
            yield from (Pair(set_name, f"{pair.archive}:{pair.src}", *lines) for lines in zip(*sides, strict=True))


def _take(name: str, path: Path, taken: dict[str, Path], counted: Counted) -> None:
    """Write the lines of each member in `taken` to its file. Members of other names are passed over."""
    missing = dict(taken)
    try:
        with tarfile.open(path, "r|*") as archive, Progress(f"read {name}", None, "lines") as progress:
            for member in archive:
                text = missing.pop(member.name.removeprefix("./"), None)
                if text is None:
                    continue
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise UserError(f"{path}: {member.name} is not a file but a link or folder, which is refused")
                progress.advance(write_lines(text, _lines(cast(BinaryIO, stream), member.name, counted)))
                if not missing:
                    break
    except tarfile.TarError as error:
        raise UserError(f"{path} is not a whole tar archive ({error}): delete it, or correct its address in params.yaml") from None
    if missing:
        raise UserError(f"{path} has no member {', '.join(missing)}: see its list with tar -tf")


def _lines(stream: BinaryIO, name: str, counted: Counted) -> Iterator[str]:
    lines = stream_lines(stream, name, counted)
    plain = PurePosixPath(name)
    if plain.suffix in COMPRESSED:
        plain = plain.with_suffix("")
    return _segments("\n".join(lines), counted) if plain.suffix in (".sgm", ".sgml") else lines


def _segments(text: str, counted: Counted) -> Iterator[str]:
    for segment in re.findall(r"<seg\b[^>]*>(.*?)</seg>", text, flags=re.DOTALL | re.IGNORECASE):
        line, breaks = re.subn(r"\n", " ", segment.strip())
        counted.line_breaks += breaks
        yield unescape(line, QUOTES)
