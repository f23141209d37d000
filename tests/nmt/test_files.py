import gzip
import hashlib
from pathlib import Path

import pytest

from nmt.config import parse
from nmt.errors import UserError
from nmt.files import FilesSource, check_files, file_pairs
from nmt.pairs import Counted


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def source(**sets: list[tuple[str, str]]) -> FilesSource:
    values = {name: [{"src": src, "tgt": tgt} for src, tgt in pairs] for name, pairs in sets.items()}
    return parse(FilesSource, {"kind": "files", "sets": values}, "c.source")


def write(**contents: bytes) -> None:
    for name, data in contents.items():
        Path(name.replace("_", ".")).write_bytes(data)


def test_pairs_come_in_the_order_of_the_files_with_their_lines_exact() -> None:
    write(
        a_en_gz=gzip.compress(b"\xef\xbb\xbf a\xe2\x80\xa8 \r\nb", mtime=0),
        a_de=b"A\n\n",
        c_en=b"c\r\n",
        c_de=b"C\rC\n",
        v_en=b"v\n",
        v_de=b"V\n",
    )
    files, counted = source(train=[("c.en", "c.de"), ("a.en.gz", "a.de")], valid=[("v.en", "v.de")]), Counted()
    names = ["c.en", "c.de", "a.en.gz", "a.de", "v.en", "v.de"]
    assert check_files(files) == {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in names}
    assert list(file_pairs(files, counted)) == [
        ("train", "c.en", "c", "C\rC"),
        ("train", "a.en.gz", " a\u2028 ", "A"),
        ("train", "a.en.gz", "b", ""),
        ("valid", "v.en", "v", "V"),
    ]
    assert counted == Counted(boms=1, carriage_returns=2)


def test_unequal_counts_are_an_error_with_both_names_both_counts_and_the_first_misfit() -> None:
    lines = [b"x" * length + b"\n" for length in (10, 200, 15, 90, 3, 400, 20, 150, 8, 60)]
    write(a_en=b"".join(lines), a_de=b"".join(lines[:4] + lines[5:]))
    with pytest.raises(UserError, match=r"^a\.en has 10 lines, a\.de has 9: .* at about line 5$"):
        check_files(source(train=[("a.en", "a.de")]))


@pytest.mark.parametrize(
    ("src", "words"),
    [
        (None, "a.en cannot be read: No such file"),
        (b"", "a.en is empty"),
        ("x\n".encode("utf-16"), "a.en, line 1, byte 0: this is UTF-16"),
        (gzip.compress(b"x\n", mtime=0), "a.en, line 1, byte 0: this is a gzip file"),
        (b"x\0\n", "a.en, line 1, byte 1: a NUL byte"),
        (b"\xfc\n", "a.en, line 1, byte 0: fc is not UTF-8"),
        (b"X\n", "a.en and a.de hold the same text"),
    ],
)
def test_a_file_that_is_no_text_of_its_own_is_one_sentence(src: bytes | None, words: str) -> None:
    write(a_de=b"X\n", **({} if src is None else {"a_en": src}))
    with pytest.raises(UserError, match=f"^{words}"):
        check_files(source(train=[("a.en", "a.de")]))


def test_the_same_file_on_both_sides_is_a_wrong_parameter() -> None:
    with pytest.raises(UserError, match="c.source.sets.train.0 .*src and tgt are the same file, a.en"):
        source(train=[("a.en", "a.en")])


def test_a_training_file_cannot_be_a_test_file() -> None:
    with pytest.raises(UserError, match="a.de is in train and in news: what is trained on cannot test"):
        source(train=[("a.en", "a.de")], news=[("b.en", "a.de")])


def test_one_file_may_hold_both_sides() -> None:
    write(t_tsv=b"one\teins\r\ntwo\tzwei\r\n")
    files, counted = source(train=[("t.tsv:1", "t.tsv:2")]), Counted()
    assert check_files(files) == {"t.tsv": hashlib.sha256(Path("t.tsv").read_bytes()).hexdigest()}
    assert list(file_pairs(files, counted)) == [("train", "t.tsv:1", "one", "eins"), ("train", "t.tsv:1", "two", "zwei")]
    assert counted == Counted(carriage_returns=2)
    with pytest.raises(UserError, match="c.source.sets.train.0.src .*t.tsv holds both sides: name the column, as in t.tsv:1"):
        source(train=[("t.tsv", "t.tsv")])
    with pytest.raises(UserError, match="t.tsv is in train and in news"):
        source(train=[("t.tsv:1", "t.tsv:2")], news=[("t.tsv:3", "b.de")])
