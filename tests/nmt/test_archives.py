import gzip
import io
import tarfile
from pathlib import Path

import pytest

from nmt.archives import ArchivesSource, archive_pairs
from nmt.config import parse
from nmt.errors import UserError
from nmt.pairs import Counted, Pair

URL = "http://127.0.0.1/a.tgz"


def source(*train: tuple[str, str], archives: str = "a") -> ArchivesSource:
    return parse(
        ArchivesSource,
        {
            "kind": "archives",
            "archives": {name: {"url": URL, "sha256": None} for name in archives},
            "sets": {"train": [{"archive": archives[0], "src": src, "tgt": tgt} for src, tgt in train]},
        },
        "c.source",
    )


def tar(path: Path, members: dict[str, bytes], mode: str = "w:gz", links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


def read(sources: ArchivesSource, path: Path, tmp_path: Path) -> tuple[list[Pair], Counted]:
    work, counted = tmp_path / "work", Counted()
    work.mkdir()
    return list(archive_pairs(sources, {"a": path}, work, counted)), counted


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_members_are_read_whatever_their_order_and_packing(tmp_path: Path, mode: str) -> None:
    members = {
        "x/b.de": b"B\n",
        "./x/a.de.gz": gzip.compress("\ufeffÄ\u2028\r\nE".encode()),
        "x/a.en": b"a\ne\n",
        "x/b.en": b"b",
        "more": b"\0",
    }
    pairs, counted = read(source(("x/a.en", "x/a.de.gz"), ("x/b.en", "x/b.de")), tar(tmp_path / "t", members, mode), tmp_path)
    assert pairs == [("train", "a:x/a.en", "a", "Ä\u2028"), ("train", "a:x/a.en", "e", "E"), ("train", "a:x/b.en", "b", "B")]
    assert counted == Counted(boms=1, carriage_returns=1)


def test_of_sgml_each_segment_is_a_line(tmp_path: Path) -> None:
    sgml = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<srcset setid="t" srclang="any">\n<doc docid="d">\n<p>\n'
        '<seg id="1"> Tom &amp; Jerry said &quot;&lt;hi&gt;&quot; &apos;x&apos; </seg>\n<SEG id="2">AT&T &copy;\nagain</SEG>'
        '<seg id="3"></seg>\n'
        "<seg>&amp;lt;</seg></p></doc></srcset>\n"
    )
    pairs, counted = read(source(("a.sgm", "b")), tar(tmp_path / "t", {"a.sgm": sgml.encode(), "b": b"1\n2\n3\n4\n"}), tmp_path)
    assert [pair.src for pair in pairs] == ["Tom & Jerry said \"<hi>\" 'x'", "AT&T &copy; again", "", "&lt;"]
    assert counted == Counted(line_breaks=1)


def test_nothing_is_unpacked_by_its_name(tmp_path: Path) -> None:
    bad = {"../climbed": b"x", str(tmp_path / "absolute"): b"x", "__MACOSX/._a": b"\0", "x/../../../climbed": b"x", "._a": b"\0\xff"}
    folder = tmp_path / "deep"
    folder.mkdir()
    path = tar(folder / "t", bad | {"a": b"1\n", "b": b"2\n"}, links={"link": "/etc", "link/passwd": "../../.."})
    pairs, _ = read(source(("a", "b")), path, folder)
    assert pairs == [("train", "a:a", "1", "2")]
    assert list(tmp_path.iterdir()) == [folder] and sorted(file.name for file in (folder / "work").iterdir()) == ["a.0", "a.1"]


@pytest.mark.parametrize("name", ["../a", "/a", "x/../../a", "__MACOSX/._a"])
def test_a_name_that_is_no_plain_member_is_refused_in_the_parameters(name: str) -> None:
    with pytest.raises(UserError, match=r"c\.source.sets.train.0.src .* is no plain name inside an archive"):
        source((name, "b"))


def test_a_link_under_a_wanted_name_is_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "t", {"b": b"root\n"}, links={"a": "/etc/hostname"})
    with pytest.raises(UserError, match="a is not a file but a link or folder, which is refused"):
        read(source(("a", "b")), path, tmp_path)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="t has no member c: see its list with tar -tf"):
        read(source(("a", "c")), tar(tmp_path / "t", {"a": b"1\n"}), tmp_path)


def test_sides_of_unequal_length_are_an_error_with_both_counts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a:a has 2 lines, a:b has 1: .*about line 2"):
        read(source(("a", "b")), tar(tmp_path / "t", {"a": b"1\n2\n", "b": b"1\n"}), tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_damaged_archive_is_one_sentence(tmp_path: Path, mode: str) -> None:
    text = "".join(f"{n * n}\n" for n in range(20_000)).encode()
    path = tar(tmp_path / "t", {"a": text, "b": text}, mode)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(UserError, match="is not a whole tar archive|has no member"):
        read(source(("a", "b")), path, tmp_path)


def test_a_file_that_is_no_archive_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(UserError, match="is not a whole tar archive"):
        read(source(("a", "b")), path, tmp_path)


def test_bytes_that_are_not_text_are_placed_in_the_member(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^b, line 2, byte 2: a NUL byte"):
        read(source(("a", "b")), tar(tmp_path / "t", {"a": b"1\n2\n", "b": b"1\n\0\n"}), tmp_path)


def test_archives_and_sets_must_name_each_other() -> None:
    with pytest.raises(UserError, match="no set uses the archive b"):
        source(("a", "b"), archives="ab")
    pair = {"archive": "def", "src": "a", "tgt": "b"}
    with pytest.raises(UserError, match="there is no archive def: did you mean dev?"):
        parse(
            ArchivesSource, {"kind": "archives", "archives": {"dev": {"url": URL, "sha256": None}}, "sets": {"train": [pair]}}, "c.source"
        )
