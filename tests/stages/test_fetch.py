"""The stage on sources made here: files, archives from a server on this machine, and a wheel put into the download folder."""

import copy
import functools
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from stages.fetch import fetch
from tests.nmt.test_debian import deb

ROOT = Path(__file__).parents[2]
PARAMS = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text("utf-8"))
RAW, MANIFEST = Path("data/mine/raw"), Path("data/mine/manifest.json")
SHARES = {"valid": 0.2, "test": 0.2, "min_test_lines": 1}
FILES = {"kind": "files", "sets": {"train": [{"src": "a.en", "tgt": "a.de"}]}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def write_params(source: dict[str, Any], held_out: dict[str, Any] | None = SHARES, test: list[str] = ["test"], **more: Any) -> None:  # noqa: B006
    """params.yaml of the project with one corpus, `mine`, that comes from `source`."""
    params = copy.deepcopy(PARAMS)
    mine = params["corpora"]["demo"] | {"source": source, "held_out": held_out, "test": test} | more
    params |= {"corpora": {"mine": mine}, "reproduce": {"corpora": ["mine"], "variants": ["tiny"], "curves": []}}
    YAML(typ="safe", pure=True).dump(params, Path("params.yaml"))


def run() -> dict[str, Any]:
    fetch("corpora.mine", RAW, MANIFEST)
    manifest: dict[str, Any] = json.loads(MANIFEST.read_text("utf-8"))
    for name, text in manifest["sets"].items():
        for code in ("en", "de"):
            data = (RAW / f"{name}.{code}").read_bytes()
            assert text["sha256"][code] == hashlib.sha256(data).hexdigest() and text["lines"] == data.count(b"\n")
        assert sum(part["lines"] for part in text["parts"]) == text["lines"]
    assert sorted(path.name for path in RAW.iterdir()) == sorted(f"{name}.{code}" for name in manifest["sets"] for code in ("en", "de"))
    return manifest


def refuses(words: str) -> None:
    with pytest.raises(UserError, match=words):
        fetch("corpora.mine", RAW, MANIFEST)
    assert [path for path in Path("data").rglob("*") if path.name != "mine"] == []


def outputs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}


def test_files_are_shared_out_line_by_line_and_repeat_to_the_byte() -> None:
    lines = [f"line {n % 150}\u2028{n % 150}" for n in range(300)]
    Path("a.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    Path("a.de").write_text("".join(f"Zeile {n}\n" for n in range(300)), "utf-8")
    write_params(FILES)
    manifest = run()
    assert list(manifest["sets"]) == ["train", "valid", "test"] and sum(text["lines"] for text in manifest["sets"].values()) == 300
    assert manifest["counted"] == {"boms": 1, "carriage_returns": 299, "line_breaks": 0, "without_partner": 0}
    size, digest = os.path.getsize("a.en"), hashlib.sha256(Path("a.en").read_bytes()).hexdigest()
    assert manifest["source"]["kind"] == "files" and manifest["source"]["files"]["a.en"] == {"sha256": digest, "bytes": size}
    texts = {name: (RAW / f"{name}.en").read_text("utf-8").split("\n")[:-1] for name in manifest["sets"]}
    assert sorted(line for text in texts.values() for line in text) == sorted(lines)
    assert not set(texts["train"]) & (set(texts["valid"]) | set(texts["test"])) and not set(texts["valid"]) & set(texts["test"])
    first = outputs()
    run()
    assert outputs() == first


def test_named_sets_hold_the_lines_of_their_files() -> None:
    sets = {name: [{"src": f"{name}.en", "tgt": f"{name}.de"}] for name in ("train", "valid", "news", "talks")}
    for name in sets:
        Path(f"{name}.en").write_bytes(f" {name}\n\n".encode())
        Path(f"{name}.de").write_bytes(f"{name}\u2028!\nx\n".encode())
    write_params({"kind": "files", "sets": sets}, None, ["news", "talks"])
    assert list(run()["sets"]) == ["train", "valid", "news", "talks"]
    for name in sets:
        for code in ("en", "de"):
            assert (RAW / f"{name}.{code}").read_bytes() == Path(f"{name}.{code}").read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "a.en cannot be read"),
        (b"", "a.en is empty"),
        (b"one\ntwo\n", "a.en has 2 lines, a.de has 3"),
        (b"one\ntwo\n\xff\n", "a.en, line 3, byte 8"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_and_leaves_nothing_behind(content: bytes | None, words: str) -> None:
    if content is not None:
        Path("a.en").write_bytes(content)
    Path("a.de").write_bytes(b"eins\nzwei\ndrei\n")
    write_params(FILES)
    refuses(words)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (1, "corpora.mine: no pair is left for (valid|train): give the source more text"),
        (200, "corpora.mine: the held out test has [0-9]+ pairs, fewer than min_test_lines, 200: raise corpora.mine.held_out.test"),
    ],
)
def test_text_too_small_for_its_sets_is_an_error_and_leaves_nothing_behind(lines: int, words: str) -> None:
    for code in ("en", "de"):
        Path(f"a.{code}").write_text("".join(f"{code} {n}\n" for n in range(lines)))
    write_params(FILES, SHARES | {"min_test_lines": 200})
    refuses(words)


def test_a_failure_keeps_what_was_fetched_before() -> None:
    for code in ("en", "de"):
        Path(f"a.{code}").write_text("".join(f"{code} {n}\n" for n in range(100)))
    write_params(FILES)
    run()
    before = outputs()
    Path("a.en").write_text("one\n")
    with pytest.raises(UserError):
        fetch("corpora.mine", RAW, MANIFEST)
    assert outputs() == before


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a plain server, which knows no ranges, for the folder `www`."""
    (tmp_path / "www").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "www"))) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def archive(name: str, members: dict[str, str]) -> str:
    """Put a tar archive into the server's folder; returns its SHA-256."""
    path = Path("www") / name
    with tarfile.open(path, "w:gz") as tar:
        for member, text in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def archives_source(server: str, hashes: dict[str, str | None]) -> dict[str, Any]:
    return {
        "kind": "archives",
        "archives": {name: {"url": f"{server}/{name}.tgz", "sha256": sha256} for name, sha256 in hashes.items()},
        "sets": {
            "train": [{"archive": name, "src": f"{name}.en", "tgt": f"{name}.de"} for name in hashes if name != "dev"],
            "valid": [{"archive": "dev", "src": "v.en.sgm", "tgt": "v.de.sgm"}],
            "news": [{"archive": "dev", "src": "n.en.sgm", "tgt": "n.de.sgm"}],
        },
    }


def test_archives_give_the_sets_that_their_members_are_named_for(server: str) -> None:
    hashes: dict[str, str | None] = {
        "one": archive("one.tgz", {"one.en": "a\nb\n", "one.de": "A\nB\n", "__MACOSX/._one.en": "\0"}),
        "dev": archive("dev.tgz", {f"{s}.{c}.sgm": f'<seg id="1">{s} &amp; {c}</seg>' for s in "vn" for c in ("en", "de")}),
        "two": None,
    }
    recorded = archive("two.tgz", {"two.de": "C\n", "two.en": "c\n"})
    write_params(archives_source(server, hashes), None, ["news"])
    manifest = run()
    assert (RAW / "train.en").read_text() == "a\nb\nc\n" and (RAW / "train.de").read_text() == "A\nB\nC\n"
    assert (RAW / "news.de").read_text() == "n & de\n" and (RAW / "valid.en").read_text() == "v & en\n"
    assert manifest["sets"]["train"]["parts"] == [{"name": "one:one.en", "lines": 2}, {"name": "two:two.en", "lines": 1}]
    size = os.path.getsize("www/two.tgz")
    assert manifest["source"]["archives"]["two"] == {"url": f"{server}/two.tgz", "sha256": recorded, "bytes": size}
    first = outputs()
    for path in Path("www").iterdir():
        path.unlink()
    run()
    assert outputs() == first


@pytest.mark.parametrize("damage", ["cut", "byte", "page"])
def test_an_archive_that_is_not_the_one_named_is_refused_and_the_right_one_accepted_later(server: str, damage: str) -> None:
    sha256 = archive("dev.tgz", {f"{s}.{c}{e}": f"<seg>{s}</seg>\n" for s in ("v", "n", "one") for c in ("en", "de") for e in (".sgm", "")})
    path = Path("www/dev.tgz")
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-9], "byte": whole[:-9] + b"!" + whole[-8:], "page": b"<html>Not today</html>"}[damage])
    source = archives_source(server, {"dev": sha256})
    source["sets"]["train"] = [{"archive": "dev", "src": "one.en", "tgt": "one.de"}]
    write_params(source, None, ["news"])
    refuses("refused because it is not " + sha256)
    path.write_bytes(whole)
    assert run()["sets"]["train"]["lines"] == 1


def test_a_wheel_is_shared_out_by_documents(tmp_path: Path) -> None:
    folder = Path(".scratch/downloads")
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "pack-1.0-py3-none-any.whl", "w") as wheel:
        for document in range(50):
            for code in ("en", "de"):
                texts = {str(key): f"{code} {document}\n{key}" for key in range(3)} | ({"x": "alone"} if code == "en" else {})
                wheel.writestr(f"pack/d{document:02}/{code}.json", json.dumps(texts))
    sha256 = hashlib.sha256(next(folder.iterdir()).read_bytes()).hexdigest()
    members = "pack/{document}/{language}.json"
    write_params({"kind": "wheel", "package": "pack", "version": "1.0", "sha256": sha256, "members": members})
    manifest = run()
    assert manifest["counted"] == {"boms": 0, "carriage_returns": 0, "line_breaks": 300, "without_partner": 50}
    documents = [part for text in manifest["sets"].values() for part in text["parts"]]
    assert sorted(part["name"] for part in documents) == [f"d{n:02}" for n in range(50)] and {part["lines"] for part in documents} == {3}


@pytest.mark.slow
def test_a_misspelled_parameter_anywhere_stops_with_code_2_before_any_work() -> None:
    for code in ("en", "de"):
        Path(f"a.{code}").write_text("".join(f"{code} {n}\n" for n in range(100)))
    write_params(FILES)
    command = [sys.executable, "-m", "stages.fetch", "corpora.mine", str(RAW), str(MANIFEST)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("beam_size", "beem_size"))
    stopped = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert stopped.returncode == 2 and "beam_size" in stopped.stderr and "Traceback" not in stopped.stderr and not Path("data").exists()
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("beem_size", "beam_size"))
    assert subprocess.run(command, env=environment).returncode == 0 and RAW.is_dir()
    Path("a.en").unlink()
    stopped = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert stopped.returncode == 2 and "a.en" in stopped.stderr and "Traceback" not in stopped.stderr


def test_packages_are_shared_out_by_pages_and_named_in_the_manifest() -> None:
    folder = Path(".scratch/downloads")
    folder.mkdir(parents=True)
    for package, code in (("help-en-us", "en-US"), ("help-de", "de")):
        page = "usr/share/libreoffice/help/{}/text/{}.html"
        pages = {page.format(code, f"p{n:02}"): f'<p id="par_id1">{code}\n{n}</p><p id="par_id2">2</p>'.encode() for n in range(50)}
        deb(folder / f"{package}_1%3a2.0-1_all.deb", pages)
    sha256 = hashlib.sha256((folder / "help-de_1%3a2.0-1_all.deb").read_bytes()).hexdigest()
    packages = {"help-en-us": {"version": None, "sha256": None}, "help-de": {"version": "1:2.0-1", "sha256": sha256}}
    write_params({"kind": "debian", "packages": packages, "min_pairs": 100})
    manifest = run()
    found = manifest["source"]["packages"]["help-de"]
    assert found == {"version": "1:2.0-1", "sha256": sha256, "bytes": os.path.getsize(folder / "help-de_1%3a2.0-1_all.deb")}
    assert {part["lines"] for text in manifest["sets"].values() for part in text["parts"]} == {2}
    assert sum(text["lines"] for text in manifest["sets"].values()) == 100
    first = outputs()
    run()
    assert outputs() == first
    write_params({"kind": "debian", "packages": packages, "min_pairs": 101})
    with pytest.raises(UserError, match="the packages give 100 pairs, fewer than min_pairs, 101"):
        fetch("corpora.mine", RAW, MANIFEST)
    assert outputs() == first
