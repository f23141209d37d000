"""Text from Debian packages: help, interfaces, manual pages and books that exist in both languages (nmt/manuals.py).

    libreoffice-help-en-us_7.4.7_all.deb    ar: debian-binary, control.tar.xz, data.tar.xz
        usr/share/libreoffice/help/en-US/text/scalc/01/06030100.html    -> page scalc/01/06030100.html, English
    libreoffice-help-de_7.4.7_all.deb
        usr/share/libreoffice/help/de/text/scalc/01/06030100.html       -> the same page, German

Packages are read, never installed or unpacked: members are taken from the archive's stream by the shape of their names, so that names that
climb out and links lead nowhere. All packages are read together: the two sides of a page may stand in two of them.
"""

import getpass
import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast
from urllib.parse import unquote

import pyarrow
from pydantic import Field

from nmt import manuals
from nmt.config import Config
from nmt.download import locked, sha256_of
from nmt.errors import UserError
from nmt.heldout import HeldOut, set_of
from nmt.languages import Languages
from nmt.outputs import passing_folder
from nmt.pairs import Counted, Pair

Reader = Callable[[str, str], Iterator[tuple[str, str]]]

# Where pages lie, by the format they are in; {language} is one of `_spellings`, {document} names the page in either language.
PAGES: list[tuple[str, Reader]] = [
    ("usr/share/libreoffice/help/{language}/text/{document}.html", manuals.libreoffice_pairs),
    ("usr/share/doc/debian-handbook/html/{language}/{document}.html", manuals.html_pairs),
    ("usr/share/debian-reference/{document}.{language}.html", manuals.html_pairs),
    ("usr/share/doc/installation-guide-[a-z0-9]+/{language}/{document}.html", manuals.html_pairs),
    ("usr/share/help/{language}/{document}.page", manuals.mallard_pairs),
    ("usr/share/man/{language}/{document}.gz", manuals.man_pairs),
]
CATALOG = re.compile(r"usr/lib/libreoffice/program/resource/([^/]+)/LC_MESSAGES/(\w+)\.mo")
DING = "usr/share/trans/de-en"


class Package(Config):
    """A version of a package and the SHA-256 of its file; null: whatever apt offers, which the manifest then names."""

    version: str | None = Field(pattern=r"^[0-9][A-Za-z0-9.+:~-]*$")
    sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")


class DebianSource(Config):
    """Section `corpora.*.source` of kind debian: packages by name, and the least number of pairs that they must give."""

    kind: Literal["debian"]
    packages: dict[str, Package] = Field(min_length=1)
    min_pairs: int = Field(ge=1)


def fetch_packages(source: DebianSource, downloads: Path) -> dict[str, Path]:
    """The packages in the folder `downloads`, by name, brought by apt-get unless they are there already, their hashes verified either way.

    apt-get works on lists of its own in a folder of ours, so it needs no rights. A file that was put there by hand is accepted if its name
    and hash are right. Raises UserError when apt-get is missing or fails, or when a hash is another.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    with locked(downloads / "debian"):
        found = {name: _present(name, package, downloads) for name, package in source.packages.items()}
        missing = {name: source.packages[name] for name, path in found.items() if path is None}
        if missing:
            with passing_folder(downloads / "debian.part") as folder:
                _apt(missing, folder)
                for name, package in missing.items():
                    found[name] = _accept(name, package, folder, downloads)
    return {name: path for name, path in found.items() if path is not None}


def version_of(path: Path) -> str:
    """The version that the name of a package's file gives, name_version_architecture.deb, in which a colon is written %3a."""
    return unquote(path.name.split("_")[1])


def package_pairs(
    source: DebianSource, paths: dict[str, Path], languages: Languages, held_out: HeldOut, test: str, counted: Counted
) -> Iterator[Pair]:
    """The pairs of all packages; each page is a part, and all of it goes to one set. A line break becomes a space.

    Of messages and example sentences those with one context, or of one entry, stay together. Raises UserError for a damaged package, and at
    the end for fewer pairs than there must be.
    """
    count = 0
    for pair in _pairs(_texts(paths, languages), languages, held_out, test):
        count += 1
        sides = [re.subn(r"\r\n|\r|\n", " ", side) for side in (pair.src, pair.tgt)]
        counted.line_breaks += sum(breaks for _, breaks in sides)
        yield pair._replace(src=sides[0][0], tgt=sides[1][0])
    if count < source.min_pairs:
        raise UserError(
            f"the packages give {count:,} pairs, fewer than min_pairs, {source.min_pairs:,}: they lack texts, or keep them elsewhere"
        )


def _present(name: str, package: Package, downloads: Path) -> Path | None:
    """The package's file that is there already."""
    for path in sorted(downloads.glob(f"{name}_*.deb")):
        if package.version in (None, version_of(path)) and package.sha256 in (None, sha256_of(path)):
            return path
    return None


def _accept(name: str, package: Package, folder: Path, downloads: Path) -> Path:
    """Move the package that apt-get left in `folder` to `downloads`, if it is the right one."""
    brought = sorted(folder.glob(f"{name}_*.deb"))
    if not brought:
        raise UserError(f"apt-get has not brought {name}: check its name in params.yaml")
    sha256 = sha256_of(brought[0])
    if package.sha256 not in (None, sha256):
        raise UserError(f"{brought[0].name} has the SHA-256 {sha256}, refused because it is not {package.sha256} of params.yaml")
    os.replace(brought[0], downloads / brought[0].name)
    return downloads / brought[0].name


def _apt(packages: dict[str, Package], folder: Path) -> None:
    """Have apt-get bring the packages into `folder`."""
    if shutil.which("apt-get") is None:
        raise UserError("a source of kind debian needs apt-get: use Debian or Ubuntu, or put the .deb files into the downloads")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    here = folder.resolve()
    options = {
        "Dir::State::lists": f"{here}/lists",
        "Dir::Cache": f"{here}/cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": getpass.getuser(),
    }
    command = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    wanted = [name if package.version is None else f"{name}={package.version}" for name, package in packages.items()]
    for arguments in (["update"], ["download", *wanted]):
        if subprocess.run([*command, *arguments], cwd=here, stdout=2).returncode != 0:
            raise UserError(
                "apt-get could not bring the packages, for the reason above: check the network; of a version that is no longer offered set "
                "version and sha256 in params.yaml to those of today, or to null"
            )


def _spellings(language: str) -> str:
    """A pattern of the names that folders have for a language: de, de-DE, de_DE; English is also the C of programmers, or no folder."""
    plain = re.escape(language)
    country = "US" if language == "en" else plain.upper()
    return rf"(?:{plain}(?:[-_]{country})?{'|C' if language == 'en' else ''})"


def _pattern(shape: str, language: str) -> re.Pattern[str]:
    if language == "en" and shape.startswith("usr/share/man/"):
        return re.compile(r"usr/share/man/(?P<document>man\d/.+)\.gz")
    return re.compile(shape.replace("{language}", _spellings(language)).replace("{document}", "(?P<document>.+)"))


class _Texts:
    """What was read of all packages."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int, str], list[bytes | None]] = {}  # place in PAGES and document: source and target
        self.catalogs: dict[str, bytes] = {}
        self.ding: bytes | None = None


def _texts(paths: dict[str, Path], languages: Languages) -> _Texts:
    codes = (languages.src, languages.tgt)
    patterns = [[_pattern(shape, language) for language in codes] for shape, _ in PAGES]
    other = languages.tgt if languages.src == "en" else languages.src
    texts = _Texts()
    for path in paths.values():
        for name, read in _members(path):
            for number, sides in enumerate(patterns):
                for side, pattern in enumerate(sides):
                    if match := pattern.fullmatch(name):
                        texts.pages.setdefault((number, match["document"]), [None, None])[side] = read()
            if (match := CATALOG.fullmatch(name)) and match[1] == other and "en" in codes:
                texts.catalogs[match[2]] = read()
            if name == DING and set(codes) == {"de", "en"}:
                texts.ding = read()
    return texts


def _members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The plain files of a package: name, and a function that reads it, to be called before the next one is asked for."""
    try:
        with path.open("rb") as stream, tarfile.open(fileobj=_data(stream), mode="r|*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isreg() and not {"..", ""} & set(name.split("/")):
                    yield name, lambda member=member: cast(BinaryIO, archive.extractfile(member)).read()  # type: ignore[misc]
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is not a whole Debian package ({error}): delete it, and run the stage again") from None


def _data(stream: BinaryIO) -> BinaryIO:
    """The member data.tar of a package, decompressed if it is of a kind that tarfile does not know. A header has 60 bytes."""
    if stream.read(8) != b"!<arch>\n":
        raise ValueError("it does not begin like one")
    while header := stream.read(60):
        name, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])
        if name.startswith("data.tar"):
            data = io.BytesIO(stream.read(size))
            if data.getbuffer().nbytes < size:
                raise ValueError("it ends early")
            if name.endswith(".zst"):
                return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(data, mode="r"), "zstd"))
            return data
        stream.seek(size + size % 2, os.SEEK_CUR)
    raise ValueError("it has no data")


def _pairs(texts: _Texts, languages: Languages, held_out: HeldOut, test: str) -> Iterator[Pair]:
    for (number, document), sides in sorted(texts.pages.items()):
        src, tgt = sides
        if src is None or tgt is None:
            continue
        shape, reader = PAGES[number]
        part = shape.removeprefix("usr/share/").replace("[a-z0-9]+", "*").format(language="*", document=document)
        where = set_of(part, held_out, test)
        yield from (Pair(where, part, *pair) for pair in reader(*map(_decoded, (src, tgt))))
    english_first = languages.src == "en"
    for name, catalog in sorted(texts.catalogs.items()):
        found = [(set_of(f"{name}:{context.split('|')[0]}", held_out, test), *pair) for context, *pair in manuals.catalog_pairs(catalog)]
        for where, english, translation in sorted(found, key=lambda row: row[0]):
            yield Pair(where, f"libreoffice:{name}.mo", *((english, translation) if english_first else (translation, english)))
    if texts.ding is not None:
        for entry, german, english in manuals.ding_pairs(_decoded(texts.ding)):
            yield Pair(set_of(entry, held_out, test), DING, *((english, german) if english_first else (german, english)))


def _decoded(data: bytes) -> str:
    """Text in UTF-8; what is not becomes U+FFFD, which cleaning finds. A NUL, which no text has, is left out."""
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return data.decode("utf-8-sig", "replace").replace("\0", "")
