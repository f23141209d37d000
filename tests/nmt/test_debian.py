"""Packages made here, brought by a stand-in for apt-get that does what apt-get does with files."""

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from nmt.config import parse
from nmt.debian import DebianSource, fetch_packages, package_pairs, version_of
from nmt.errors import UserError
from nmt.heldout import HeldOut
from nmt.languages import Languages
from nmt.pairs import Counted, Pair

HELD_OUT = HeldOut(valid=0.2, test=0.2, min_test_lines=1)
HELP = "usr/share/libreoffice/help/{}/text/a/{}.html"


def unit(text: str) -> bytes:
    return f'<p id="par_id1">{text}</p><p id="par_id2">2 {text}</p>'.encode()


def deb(path: Path, members: dict[str, bytes], kind: str = "xz", links: dict[str, str] | None = None) -> Path:
    """A package with these files, and links by name and target."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:" + ("" if kind == "zst" else kind)) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(f"./{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    packed = pyarrow.compress(data.getvalue(), codec="zstd", asbytes=True) if kind == "zst" else data.getvalue()
    with path.open("wb") as stream:
        stream.write(b"!<arch>\n")
        for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), (f"data.tar.{kind}".rstrip("."), packed)):
            stream.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2))
    return path


def source(min_pairs: int = 1, **packages: tuple[str | None, str | None]) -> DebianSource:
    values: dict[str, Any] = {
        name.replace("_", "-"): {"version": version, "sha256": sha256} for name, (version, sha256) in packages.items()
    }
    return parse(DebianSource, {"kind": "debian", "packages": values, "min_pairs": min_pairs}, "c.source")


def read(paths: dict[str, Path], src: str = "en", tgt: str = "de", least: int = 1) -> tuple[list[Pair], Counted]:
    counted = Counted()
    languages = Languages(src=src, tgt=tgt)
    pairs = package_pairs(source(least, a=(None, None)), paths, languages, HELD_OUT, "test", counted)
    return list(pairs), counted


@pytest.mark.parametrize("kind", ["xz", "gz", "zst", ""])
def test_the_two_sides_of_a_page_may_stand_in_two_packages_of_any_compression(tmp_path: Path, kind: str) -> None:
    members = {language: {HELP.format(language, f"p{n}"): unit(f"{language} {n}") for n in range(40)} for language in ("en-US", "de", "fr")}
    members["de"].pop(HELP.format("de", "p7"))
    paths = {name: deb(tmp_path / f"{name}_1.deb", files, kind) for name, files in members.items()}
    pairs, counted = read(paths)
    assert sorted(pair[2:] for pair in pairs) == sorted(
        pair for n in range(40) if n != 7 for pair in ((f"en-US {n}", f"de {n}"), (f"2 en-US {n}", f"2 de {n}"))
    )
    assert counted == Counted()
    sets = {part: {pair.set for pair in pairs if pair.part == part} for part in {pair.part for pair in pairs}}
    assert all(len(found) == 1 for found in sets.values()) and set.union(*sets.values()) == {"train", "valid", "test"}
    assert [pair[2:] for pair in read(paths, "fr", "en")[0]][:2] == [("fr 0", "en-US 0"), ("2 fr 0", "2 en-US 0")]


def test_pages_are_found_where_each_kind_of_package_keeps_them(tmp_path: Path) -> None:
    man = b".SH A\n%s\n"
    members = {
        "usr/share/man/man1/ls.1.gz": man % b"man",
        "usr/share/man/de/man1/ls.1.gz": man % b"Mann",
        "usr/share/man/fr/man1/ls.1.gz": man % b"homme",
        "usr/share/doc/debian-handbook/html/en-US/b.html": b"<p>handbook</p>",
        "usr/share/doc/debian-handbook/html/de-DE/b.html": b"<p>Handbuch</p>",
        "usr/share/debian-reference/ch01.en.html": b"<p>reference</p>",
        "usr/share/debian-reference/ch01.de.html": b"<p>Referenz</p>",
        "usr/share/doc/installation-guide-amd64/en/c.html": b"<p>guide</p>",
        "usr/share/doc/installation-guide-amd64/de/c.html": b"<p>Anleitung</p>",
        "usr/share/help/C/gnome-help/d.page": b"<page><p>help\nme</p></page>",
        "usr/share/help/de/gnome-help/d.page": b"<page><p>Hilfe</p></page>",
        "usr/share/trans/de-en": b"Haus {n} | Das Haus. :: house | The house.\n",
        "usr/share/doc/other/de/e.html": b"<p>other</p>",
    }
    pairs, _ = read({"a": deb(tmp_path / "a_1.deb", members)})
    texts = {pair[2:] for pair in pairs}
    expected = {
        ("man", "Mann"),
        ("A", "A"),
        ("handbook", "Handbuch"),
        ("reference", "Referenz"),
        ("guide", "Anleitung"),
        ("help me", "Hilfe"),
    }
    assert texts == expected | {("The house.", "Das Haus.")}


def test_names_that_climb_out_and_links_lead_nowhere(tmp_path: Path) -> None:
    good = {HELP.format(language, "p"): unit(language) for language in ("en-US", "de")}
    bad = {"../../" + HELP.format("de", "q"): unit("x"), "usr/share/libreoffice/help/de/text/../../../etc/r.html": unit("x")}
    links = {HELP.format("de", "s"): "/etc/passwd"}
    english = {HELP.format("en-US", name): unit("y") for name in "qrs"}
    pairs, _ = read({"a": deb(tmp_path / "a_1.deb", good | bad | english, links=links)})
    assert [pair[2:] for pair in pairs] == [("en-US", "de"), ("2 en-US", "2 de")]
    assert [path.name for path in tmp_path.iterdir()] == ["a_1.deb"]


@pytest.mark.parametrize("damage", ["cut", "empty", "html", "inside"])
def test_a_damaged_package_is_one_sentence(tmp_path: Path, damage: str) -> None:
    path = deb(tmp_path / "a_1.deb", {HELP.format("de", f"{n}"): unit(str(n * n)) for n in range(999)})
    whole = path.read_bytes()
    inside = whole[:2000] + bytes(byte ^ 255 for byte in whole[2000:2100]) + whole[2100:]
    path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "html": b"<html>", "inside": inside}[damage])
    with pytest.raises(UserError, match=r"a_1\.deb is not a whole Debian package"):
        read({"a": path})


def test_too_few_pairs_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the packages give 0 pairs, fewer than min_pairs, 1: "):
        read({"a": deb(tmp_path / "a_1.deb", {"usr/bin/x": b"\0"})})


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `shop` of packages; an apt-get that copies them from there, notes its arguments, and fails for what it has not."""
    for name in ("bin", "shop"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / "apt-get"
    program.write_text(f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
case "$*" in *update*) exit 0;; esac
while [ "$1" != download ]; do shift; done
shift
for word; do
  version=${{word#*=}}; [ "$version" = "$word" ] && version='*'
  cp {tmp_path}/shop/${{word%%=*}}_$(echo "$version" | sed 's/:/%3a/')_all.deb . || exit 100
done
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "shop"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_packages_come_once_and_are_verified(apt: Path, tmp_path: Path) -> None:
    for name in ("help-de_4%3a7.4-1", "man_6.03"):
        deb(apt / f"{name}_all.deb", {"x": name.encode()})
    wanted = source(**{"help_de": ("4:7.4-1", digest(apt / "help-de_4%3a7.4-1_all.deb")), "man": (None, None)})
    found = fetch_packages(wanted, tmp_path / "downloads")
    assert {name: version_of(path) for name, path in found.items()} == {"help-de": "4:7.4-1", "man": "6.03"}
    assert [path.read_bytes() for path in found.values()] == [path.read_bytes() for path in sorted(apt.iterdir())]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split("-o")[-1].split(" ", 2)[2] for line in asked] == ["update", "download help-de=4:7.4-1 man"]
    assert fetch_packages(wanted, tmp_path / "downloads") == found and (tmp_path / "asked").read_text().splitlines() == asked
    assert sorted(path.suffix for path in (tmp_path / "downloads").iterdir()) == [".deb", ".deb", ".lock"]


def test_a_package_that_is_another_or_not_offered_is_refused_and_nothing_of_it_kept(apt: Path, tmp_path: Path) -> None:
    deb(apt / "man_6.03_all.deb", {"x": b"y"})
    with pytest.raises(UserError, match=f"man_6.03_all.deb has the SHA-256 [0-9a-f]*, refused because it is not {'0' * 64} of params.yaml"):
        fetch_packages(source(man=("6.03", "0" * 64)), tmp_path / "downloads")
    with pytest.raises(UserError, match="apt-get could not bring the packages, .* set version and sha256 in params.yaml to those of today"):
        fetch_packages(source(man=("6.04", None)), tmp_path / "downloads")
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["debian.lock"]


def test_without_apt_get_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="a source of kind debian needs apt-get"):
        fetch_packages(source(man=(None, None)), tmp_path / "downloads")
    path = deb(tmp_path / "downloads" / "man_1_all.deb", {})
    assert fetch_packages(source(man=("1", digest(path))), tmp_path / "downloads") == {"man": path}
