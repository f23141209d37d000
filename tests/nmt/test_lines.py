import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.lines import BOM, Stripped, is_blank, read_exact, read_lines, stream_lines, write_lines

CHARACTERS = st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": partial(gzip.compress, mtime=0),  # no time of day
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def lines_of(data: bytes, name: str = "a.txt", stripped: Stripped | None = None) -> list[str]:
    return list(stream_lines(io.BytesIO(data), name, stripped))


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\ufeff"])
def test_a_line_ends_at_the_byte_lf_and_nowhere_else(character: str) -> None:
    assert lines_of(f"a{character}b\nc\n".encode()) == [f"a{character}b", "c"]


@given(st.lists(st.text(CHARACTERS)))
def test_written_lines_are_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a"
    assert write_lines(path, lines) == len(lines)
    assert path.read_bytes() == "".join(line + "\n" for line in lines).encode()
    assert list(read_exact(path)) == lines


@given(st.lists(st.text(CHARACTERS)), st.booleans(), st.booleans(), st.booleans())
def test_boms_and_final_carriage_returns_are_counted_and_nothing_else_is_lost(lines: list[str], bom: bool, cr: bool, lf: bool) -> None:
    data = (BOM if bom else b"") + (b"\r\n" if cr else b"\n").join(line.encode() for line in lines) + (b"\n" if lf and lines else b"")
    stripped = Stripped()
    found = lines_of(data, stripped=stripped)
    assert len(found) == data.count(b"\n") + (not data.endswith(b"\n") and len(data) > 0)
    assert sum(len(line.encode()) for line in found) == len(data) - data.count(b"\n") - 3 * stripped.boms - stripped.carriage_returns


def test_the_bom_of_line_one_and_one_final_cr_are_taken_off_and_counted() -> None:
    stripped = Stripped()
    assert lines_of(b"\xef\xbb\xbfone\r\ntwo\r\r\nth\rree\r", stripped=stripped) == ["one", "two\r", "th\rree"]
    assert stripped == Stripped(boms=1, carriage_returns=3)


def test_a_bom_further_on_is_a_character() -> None:
    stripped = Stripped()
    assert lines_of("a\n\ufeffb\nc\ufeffd\n".encode(), stripped=stripped) == ["a", "\ufeffb", "c\ufeffd"]
    assert stripped == Stripped()


@pytest.mark.parametrize(("data", "lines"), [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n\n", ["a", ""]), (b"\n\na", ["", "", "a"])])
def test_every_end_makes_a_line_and_the_last_may_lack_it(data: bytes, lines: list[str]) -> None:
    assert lines_of(data) == lines


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"good\nb\0d\n", "line 2, byte 6: a NUL"),
        (b"\xef\xbb\xbf\0", "line 1, byte 3: a NUL"),
        (b"good\r\n\xe4hm\n", "line 2, byte 6: e4 is not UTF-8"),
        (b"\xef\xbb\xbfa\xff\n", "line 1, byte 4: ff is not UTF-8"),
        (b"cut \xe2\x82", "line 1, byte 4: e2 82 is not UTF-8"),
        (b"surrogate \xed\xa0\x80", "line 1, byte 10: ed is not UTF-8"),
        ("text".encode("utf-16"), "UTF-16"),
        ("text".encode("utf-16-be"), "NUL"),
        *((compress(b"text\n"), "line 1, byte 0: this is a") for compress in COMPRESSORS.values()),
        (b"PK\x03\x04", "zip archive"),
    ],
)
def test_what_is_not_plain_text_is_refused_with_file_line_and_byte(data: bytes, place: str) -> None:
    with pytest.raises(UserError) as error:
        lines_of(data)
    assert str(error.value).startswith("a.txt, line ") and place in str(error.value)


def test_text_that_merely_begins_like_a_magic_number_is_read() -> None:
    assert lines_of(b"BZh is an airport\nPK\n") == ["BZh is an airport", "PK"]


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_compressed_file_has_the_lines_of_the_plain_one(tmp_path: Path, suffix: str) -> None:
    data = b"\xef\xbb\xbf" + "".join(f"line {n}\u2028\r\n" for n in range(5000)).encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](data[:7000]) + COMPRESSORS[suffix](data[7000:]))
    stripped = Stripped()
    assert list(read_lines(path, stripped)) == lines_of(data)
    assert stripped == Stripped(1, 5000)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("damage", ["cut", "plain"])
def test_a_damaged_or_misnamed_compressed_file_is_one_clear_sentence(suffix: str, damage: str) -> None:
    plain = "".join(f"{n * n}\n" for n in range(5000)).encode()
    data = COMPRESSORS[suffix](plain)[:-20] if damage == "cut" else plain
    with pytest.raises(UserError, match=rf"^a\{suffix} is not a whole {suffix} file"):
        lines_of(data, f"a{suffix}")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing cannot be read: No such file"):
        list(read_lines(tmp_path / "missing"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(
    "line", ["", " ", "\t", "\u00a0", "\u202f", "\u3000", "\u200b", "\ufeff", "\u2028", "\x85", "\r", " \u200b\ufeff\u00a0\u200b "]
)
def test_lines_that_show_nothing_are_blank(line: str) -> None:
    assert is_blank(line)


@pytest.mark.parametrize("line", [".", "\u00a0a", "\u200b0\u200b", "\u0301", "-"])
def test_lines_that_show_something_are_not_blank(line: str) -> None:
    assert not is_blank(line)
