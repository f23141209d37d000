"""Reading text by lines, exactly: a line ends at byte `\\n` and nowhere else.

U+2028, U+0085, vertical tab, form feed and a lone CR are characters of the line. A BOM at the head of a file and one
CR before the end of a line are not part of the text: they are stripped and counted. Text is UTF-8; a byte that is
not, or a NUL, is an error with file, line and byte offset, because it shows that the file is something else than it
seems. A file is decompressed by its suffix: .gz, .xz, .bz2, .zst; line and byte then count in the text inside.

    b"\\xef\\xbb\\xbfone\\r\\n two\\xc2\\x85\\nthree"   ->   "one", " two\\x85", "three"     (1 BOM, 1 CR)
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from nmt.errors import UserError

BOM = b"\xef\xbb\xbf"
OTHER_FORMATS = {
    rb"\x1f\x8b": "a gzip file",
    rb"\xfd7zXZ\x00": "an xz file",
    rb"\x28\xb5\x2f\xfd": "a zstd file",
    rb"BZh[1-9]1AY&SY": "a bzip2 file",
    rb"PK\x03\x04": "a zip archive",
    rb"\xff\xfe|\xfe\xff": "UTF-16 text",
}
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")


@dataclass
class Stripped:
    """How many byte order marks and final carriage returns were taken off while reading."""

    boms: int = 0
    carriage_returns: int = 0


def is_blank(line: str) -> bool:
    """Whether `line` shows nothing: white space of any kind (no-break spaces too), U+200B and U+FEFF, or no character at all."""
    return not line.replace("\u200b", "").replace("\ufeff", "").strip()


def join_whitespace(line: str) -> str:
    """`line` with each run of white space, as Unicode defines it, made one space, and none at its ends."""
    return " ".join(line.split())


def read_lines(path: Path, stripped: Stripped | None = None) -> Iterator[str]:
    """The lines of the text file `path`, without their ends. Raises UserError as `stream_lines` does, or when it cannot be opened."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    with stream:
        yield from stream_lines(stream, str(path), stripped)


def stream_lines(stream: BinaryIO, name: str, stripped: Stripped | None = None) -> Iterator[str]:
    """The lines of a binary `stream`, decompressed if the suffix of `name` says so; what is taken off is counted in `stripped`.

    Raises UserError with line and byte offset for a NUL, for bytes that are not UTF-8, and for a file that begins
    like a compressed one or like UTF-16; without them for compressed data that are damaged or cut short.
    """
    with decompressed(stream, name) as plain:
        yield from _decode(plain, name, stripped or Stripped())


@contextmanager
def decompressed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """The bytes of `stream`, decompressed if the suffix of `name` says so. In the block damaged data raise a UserError that says so."""
    suffix = PurePosixPath(name).suffix
    if suffix not in COMPRESSED:
        yield stream
        return
    try:
        yield _decompress(stream, suffix)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{name} is not a whole {suffix} file ({error}): fetch it again, or name it by what it is") from None


def read_exact(path: Path) -> Iterator[str]:
    """The lines of a file that `write_lines` wrote, nothing stripped or checked: they were when they were first read."""
    with path.open("rb") as stream:
        for line in stream:
            yield line[:-1].decode("utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write each line with a `\\n` behind it; returns their number. A line must not hold `\\n` itself."""
    count = 0
    with path.open("wb") as stream:
        for line in lines:
            assert "\n" not in line
            stream.write(line.encode("utf-8") + b"\n")
            count += 1
    return count


def _decompress(stream: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(stream))
    import pyarrow  # costs every reader of plain text 0.1 s, and is needed for this format only

    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd"))


def _decode(stream: BinaryIO, name: str, stripped: Stripped) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        start = offset
        offset += len(line)
        if number == 1:
            _refuse_other_formats(line, name)
            if line.startswith(BOM):
                line, start = line[len(BOM) :], len(BOM)
                stripped.boms += 1
        line = line.removesuffix(b"\n")
        if line.endswith(b"\r"):
            line = line[:-1]
            stripped.carriage_returns += 1
        if b"\0" in line:
            place = start + line.index(b"\0")
            raise UserError(f"{name}, line {number}, byte {place}: a NUL byte, so this is not plain UTF-8 text; convert or repair the file")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            bad = line[error.start : error.end].hex(" ")
            raise UserError(
                f"{name}, line {number}, byte {start + error.start}: {bad} is not UTF-8; convert the file to UTF-8 (iconv) or repair it"
            ) from None


def _refuse_other_formats(head: bytes, name: str) -> None:
    for magic, what in OTHER_FORMATS.items():
        if re.match(magic, head):
            raise UserError(f"{name}, line 1, byte 0: this is {what}, not UTF-8 text; name it by its real suffix or convert it")
