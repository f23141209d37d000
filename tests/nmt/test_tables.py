import gzip
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.pairs import Counted
from nmt.tables import check_name, file_of, side_lines

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" datatype="plaintext"><note>no text</note></header><body>
<tu><tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept> &amp; <hi>go</hi>.</seg></tuv>
    <tuv xml:lang="DE"><seg>Drücken\u2028Sie
      Sichern.</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>seul</seg></tuv></tu>
<tu><tuv lang="en"><seg>two</seg></tuv><tuv xml:lang="en-GB"><seg>two, British</seg></tuv><tuv xml:lang="de"><seg>zwei</seg></tuv></tu>
</body></tmx>
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_a_memory_gives_a_line_for_each_unit_on_either_side(encoding: str) -> None:
    Path("m.tmx").write_bytes(TMX.format(encoding=encoding).replace("\u2028", " ").encode(encoding))
    counted = Counted()
    assert list(side_lines("m.tmx:en", counted)) == ["Press Save & go.", "", "two"] and counted == Counted()
    assert list(side_lines("m.tmx:de", counted)) == ["Drücken Sie Sichern.", "", "zwei"] and counted == Counted(line_breaks=1)
    assert list(side_lines("m.tmx:en-gb")) == ["", "", "two, British"]
    assert list(side_lines("m.tmx:fr")) == ["", "seul", ""]


def test_characters_that_look_like_line_ends_stay_in_a_memory_and_it_may_be_compressed() -> None:
    Path("m.tmx.gz").write_bytes(gzip.compress(TMX.format(encoding="utf-8").encode(), mtime=0))
    assert list(side_lines("m.tmx.gz:de"))[0] == "Drücken\u2028Sie Sichern."


@pytest.mark.parametrize("damage", ["cut", "text", "gzip"])
def test_a_damaged_memory_is_one_sentence(damage: str) -> None:
    whole = TMX.format(encoding="utf-8").encode()
    name = "m.tmx.gz" if damage == "gzip" else "m.tmx"
    Path(name).write_bytes({"cut": whole[:-40], "text": b"one\teins\n", "gzip": gzip.compress(whole, mtime=0)[:-30]}[damage])
    with pytest.raises(UserError, match="is not a TMX file, or damaged|is not a whole .gz file"):
        list(side_lines(f"{name}:en"))
    with pytest.raises(UserError, match="gone.tmx cannot be read: No such file"):
        list(side_lines("gone.tmx:en"))


def test_a_table_gives_its_columns_with_the_lines_exact() -> None:
    Path("t.tsv").write_bytes(b'\xef\xbb\xbf1\tone\xe2\x80\xa8\t"eins"\r\n2\t\tzwei\n')
    counted = Counted()
    assert list(side_lines("t.tsv:2", counted)) == ["one\u2028", ""] and counted == Counted(boms=1, carriage_returns=1)
    assert list(side_lines("t.tsv:3")) == ['"eins"', "zwei"]
    with pytest.raises(UserError, match="t.tsv, line 1: column 4 is asked for, but there are 3"):
        list(side_lines("t.tsv:4"))


def test_a_name_says_which_side_it_means() -> None:
    for name in ("a.en", "a:b", "t.tsv:1", "x/t.tsv.zst:12", "m.tmx:pt-BR"):
        assert check_name(name) == name
    for name, words in (
        ("t.tsv", "t.tsv holds both sides: name the column, as in t.tsv:1"),
        ("m.tmx.gz", "m.tmx.gz holds both sides: name the language, as in m.tmx.gz:en"),
        ("t.tsv:0", "columns are numbers, from 1 on"),
        ("t.tsv:en", "columns are numbers, from 1 on"),
    ):
        with pytest.raises(ValueError, match=words):
            check_name(name)
    assert list(map(str, map(file_of, ("a.en", "x/t.tsv:1", "m.tmx.gz:en")))) == ["a.en", "x/t.tsv", "m.tmx.gz"]
