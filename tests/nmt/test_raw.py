import hashlib
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.pairs import Pair
from nmt.raw import Manifest, Part, read_manifest, write_manifest, write_raw

PAIRS = [
    Pair("train", "a", "one", "eins"),
    Pair("t", "a", "two\u2028", "zwei\r"),
    Pair("train", "a", "", "drei"),
    Pair("train", "b", "four", "vier"),
    Pair("t", "c", "five", "fünf"),
]


def test_each_set_and_language_is_a_file_of_exact_lines_with_its_parts_in_order(tmp_path: Path) -> None:
    sets = write_raw(PAIRS, tmp_path, ("en", "de"), ["train", "valid", "t"])
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert contents == {
        "train.en": b"one\n\nfour\n",
        "train.de": b"eins\ndrei\nvier\n",
        "valid.en": b"",
        "valid.de": b"",
        "t.en": b"two\xe2\x80\xa8\nfive\n",
        "t.de": b"zwei\r\nf\xc3\xbcnf\n",
    }
    assert list(sets) == ["train", "valid", "t"]
    assert sets["train"].parts == [Part(name="a", lines=2), Part(name="b", lines=1)] and sets["valid"].parts == []
    for name, text in sets.items():
        assert text.lines == contents[f"{name}.en"].count(b"\n") == sum(part.lines for part in text.parts)
        assert text.sha256 == {code: hashlib.sha256(contents[f"{name}.{code}"]).hexdigest() for code in ("en", "de")}


def test_a_manifest_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    sets = write_raw(PAIRS, tmp_path, ("en", "de"), ["train", "t"])
    manifest = Manifest(languages={"src": "en", "tgt": "de"}, source={"kind": "files", "files": {"ä": {}}}, sets=sets, counted={"boms": 1})
    write_manifest(tmp_path / "m.json", manifest)
    assert read_manifest(tmp_path / "m.json") == manifest and list(read_manifest(tmp_path / "m.json").sets) == ["train", "t"]


def test_what_is_no_manifest_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="m.json is missing"):
        read_manifest(tmp_path / "m.json")
    (tmp_path / "m.json").write_text('{"languages": {}')
    with pytest.raises(UserError, match="m.json is not a manifest"):
        read_manifest(tmp_path / "m.json")
