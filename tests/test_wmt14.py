"""The recipes of WMT14 in params.yaml as far as the network: against a server on this machine with archives of the same inner layout.

The server cuts connections, knows no ranges, is slow, sends a wrong byte; from fetch to shard the stages are those of the pipeline.
"""

import copy
import gzip
import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from nmt.shards import read_pairs
from stages import clean, fetch, shard, tokenizer
from tests.copy_task import HARDWARE

ROOT = Path(__file__).parent.parent
CORPORA = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text("utf-8"))["corpora"]
NAMES = ["wmt14-en-de", "wmt14-en-fr"]
TRAIN_LINES, TEST_LINES = 200, 20  # of each pair of members
WORDS = "the house is old a cat sees tree and red light das Haus ist alt eine Katze sieht den Baum und grün schön été déjà".split()


def line(member: str, number: int) -> str:
    """Line `number` of a member, another one for each, with characters that end lines elsewhere."""
    words = random.Random(f"{member} {number}").choices(WORDS, k=6)
    return f"{member.split('.')[0].split('/')[-1]} {number} {' '.join(words)}" + ["", "\u2028x", "\x85x", "\rx", " x "][number % 5]


def content(member: str) -> bytes:
    """A member as WMT has it: plain, compressed, or SGML; each side of a pair of equally many lines."""
    if member.endswith(".sgm"):
        segments = "".join(f'<seg id="{n}"> {line(member, n * 5)} &amp; co </seg>\n' for n in range(TEST_LINES))
        return f'<refset setid="x" srclang="any">\n<doc docid="d">\n<p>\n{segments}</p>\n</doc>\n</refset>\n'.encode()
    plain = "".join(f"{line(member, n)}\n" for n in range(TRAIN_LINES)).encode()
    return gzip.compress(plain, mtime=0) if member.endswith(".gz") else plain


def archive(path: str, members: list[str]) -> bytes:
    """A tar archive, compressed if the address says so, with members that nobody asks for in between."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz" if path.endswith("gz") else "w") as tar:
        for member in [*members, "__MACOSX/._x", "README"]:
            body = content(member) if member in members else b"\0"
            info = tarfile.TarInfo(member)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return data.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `files` by path. `cuts`: bytes after which the next answers end; `pause`: seconds after each piece of 1,000 bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.ranges, self.pause = True, 0.0
        self.asked: list[tuple[str, str | None]] = []

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append((self.path, wanted))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        body = server.files[self.path][start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        end = server.cuts.pop(0) if server.cuts else len(body)
        for place in range(0, min(end, len(body)), 1000):
            self.wfile.write(body[place : min(place + 1000, end)])
            time.sleep(server.pause)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def publish(name: str, server: Server) -> dict[str, Any]:
    """Put the recipe's archives on the server and its section, with their addresses and hashes, into params.yaml; returns the section."""
    corpus: dict[str, Any] = copy.deepcopy(CORPORA[name])
    for key, found in corpus["source"]["archives"].items():
        members = sorted(
            {m for pairs in corpus["source"]["sets"].values() for p in pairs if p["archive"] == key for m in (p["src"], p["tgt"])}
        )
        path = "/" + found["url"].split("/", 3)[3]
        server.files[path] = archive(path, members)
        found["url"] = f"http://127.0.0.1:{server.server_port}{path}"
        if found["sha256"] is not None:
            found["sha256"] = hashlib.sha256(server.files[path]).hexdigest()
    corpus["tokenizer"] |= {"vocab_size": 330}
    params = {"corpora": {name: corpus}, "hardware": HARDWARE | {"workers": 1}}
    YAML(typ="safe", pure=True).dump(params, Path("params.yaml"))
    return corpus


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_archives_to_shards(name: str, server: Server) -> None:
    corpus = publish(name, server)
    src, tgt = corpus["languages"].values()
    server.ranges = name == "wmt14-en-de"
    server.cuts = [1000, 500, 3000]
    section, data = f"corpora.{name}", Path("data")
    fetch.fetch(section, data / "raw", data / "manifest.json")
    train = corpus["source"]["sets"]["train"]
    for side, language in (("src", src), ("tgt", tgt)):
        expected = "".join(f"{line(pair[side], n)}\n" for pair in train for n in range(TRAIN_LINES))
        assert (data / "raw" / f"train.{language}").read_bytes() == expected.encode()
        for set_name in ("valid", "newstest2014"):
            [pair] = corpus["source"]["sets"][set_name]
            expected = "".join(f"{line(pair[side], n * 5)} & co\n" for n in range(TEST_LINES))
            assert (data / "raw" / f"{set_name}.{language}").read_text("utf-8") == expected
    clean.main(section, data / "raw", data / "manifest.json", data / "clean", data / "ledger.parquet", data / "cleaning.json")
    tokenizer.main(section, data / "clean", data / "tokenizer.model", data / "tokenizer.json")
    shard.main(section, data / "clean", data / "raw", data / "tokenizer.model", data / "shards", data / "statistics.json")
    assert sum(1 for _ in read_pairs(data / "shards/train")) == TRAIN_LINES * len(train)
    assert sum(1 for _ in read_pairs(data / "shards/valid")) == TEST_LINES


def test_a_wrong_byte_in_one_archive_refuses_the_recipe_and_the_others_are_kept(server: Server) -> None:
    publish("wmt14-en-de", server)
    path = next(path for path in server.files if "europarl" in path)
    whole = server.files[path]
    server.files[path] = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    with pytest.raises(UserError, match=r"europarl-v7\.tgz: the server sent a file with the SHA-256 .*, refused because it is not"):
        fetch.fetch("corpora.wmt14-en-de", Path("data/raw"), Path("data/manifest.json"))
    assert files("data") == {}
    server.files[path] = whole
    server.asked.clear()
    fetch.fetch("corpora.wmt14-en-de", Path("data/raw"), Path("data/manifest.json"))
    assert not [asked for asked, _ in server.asked if "commoncrawl" in asked] and len(files("data")) == 7


@pytest.mark.slow
def test_killed_in_a_slow_download_the_next_run_goes_on_there_and_ends_with_the_same_bytes(server: Server) -> None:
    publish("wmt14-en-de", server)
    paths = "Path('data/raw'), Path('data/manifest.json')"
    program = f"from pathlib import Path; from stages.fetch import fetch; fetch('corpora.wmt14-en-de', {paths})"
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": str(ROOT)}
    server.pause = 0.05
    downloads = Path(".scratch/downloads")
    with subprocess.Popen(command, env=environment) as process:
        while not list(downloads.glob("*europarl*.part")) or next(downloads.glob("*europarl*.part")).stat().st_size == 0:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        process.kill()
    assert not Path("data/raw").exists() and not Path("data/manifest.json").exists()
    server.pause = 0.0
    server.asked.clear()
    subprocess.run(command, check=True, env=environment)
    resumed = [(path, wanted) for path, wanted in server.asked if wanted]
    assert not [path for path, _ in server.asked if "commoncrawl" in path] and ["europarl" in path for path, _ in resumed] == [True]
    first = files("data")
    fetch.fetch("corpora.wmt14-en-de", Path("data/raw"), Path("data/manifest.json"))
    assert files("data") == first and len(first) == 7
