"""Downloads from a real server on this machine, which misbehaves as real servers do."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nmt import download as module
from nmt.download import download, sha256_of
from nmt.errors import UserError

CONTENT = bytes(n * n % 251 for n in range(3_000_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content`; each entry of `cuts` ends one answer after so many bytes; `ranges` False answers in full."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.status = CONTENT, True, 200
        self.cuts: list[int] = []
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/corpus/dev.tgz"

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(server.content) > 0:
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with serving() as server:
        yield server


def finished(folder: Path) -> list[str]:
    """Names of what is neither a lock nor the record of a hash."""
    return sorted(path.suffix for path in folder.iterdir() if path.suffix not in (".lock", ".sha256"))


def test_a_whole_file_comes_once_and_is_verified_at_every_use(server: Server, tmp_path: Path) -> None:
    path, found = download(server.url, SHA256, tmp_path)
    assert path.read_bytes() == CONTENT and found == SHA256 == sha256_of(path)
    assert download(server.url, SHA256, tmp_path) == (path, SHA256) and len(server.asked) == 1
    path.write_bytes(CONTENT[:-1] + b"!")
    assert download(server.url, SHA256, tmp_path)[0].read_bytes() == CONTENT and len(server.asked) == 2


def test_two_addresses_with_one_file_name_do_not_mix(server: Server, tmp_path: Path) -> None:
    first, _ = download(server.url, SHA256, tmp_path)
    second, _ = download(server.url.replace("corpus", "other"), SHA256, tmp_path)
    assert first != second and first.read_bytes() == second.read_bytes()


def test_a_connection_cut_again_and_again_is_resumed_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = [100, 1_000_000, 0, 7]
    path, _ = download(server.url, SHA256, tmp_path)
    assert path.read_bytes() == CONTENT and finished(tmp_path) == [".tgz"]
    assert server.asked == [None, "bytes=100-", "bytes=1000100-", "bytes=1000100-", "bytes=1000107-"]


def test_a_server_that_refuses_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [100]
    assert download(server.url, SHA256, tmp_path)[0].read_bytes() == CONTENT


def test_a_server_that_never_gets_further_ends_with_a_sentence_and_the_next_run_goes_on(server: Server, tmp_path: Path) -> None:
    server.cuts = [1_000_000] + [0] * module.ATTEMPTS
    with pytest.raises(UserError, match=r"dev.tgz could not be downloaded \(.*1,000,000 of 3,000,000 bytes\): run it again"):
        download(server.url, SHA256, tmp_path)
    assert finished(tmp_path) == [".part"]
    server.asked.clear()
    assert download(server.url, SHA256, tmp_path)[0].read_bytes() == CONTENT
    assert server.asked == ["bytes=1000000-"] and finished(tmp_path) == [".tgz"]


@pytest.mark.parametrize("place", [0, 1_234_567, len(CONTENT) - 1])
def test_one_wrong_byte_is_refused_and_nothing_is_left(server: Server, tmp_path: Path, place: int) -> None:
    server.content = CONTENT[:place] + bytes([CONTENT[place] ^ 1]) + CONTENT[place + 1 :]
    with pytest.raises(UserError, match="refused because it is not " + SHA256):
        download(server.url, SHA256, tmp_path)
    assert finished(tmp_path) == []


def test_a_beginning_of_another_file_costs_one_more_download(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000] + [0] * module.ATTEMPTS
    server.content = b"x" * 2000
    with pytest.raises(UserError, match="could not be downloaded"):
        download(server.url, SHA256, tmp_path)
    server.content = CONTENT
    assert download(server.url, SHA256, tmp_path)[0].read_bytes() == CONTENT


def test_a_part_that_was_complete_already_is_verified(server: Server, tmp_path: Path) -> None:
    path, _ = download(server.url, SHA256, tmp_path)
    path.rename(path.with_name(path.name + ".part"))
    assert download(server.url, SHA256, tmp_path)[0].read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_web_page_with_status_200_is_refused(server: Server, tmp_path: Path, sha256: str | None) -> None:
    server.content = b"\n<!DOCTYPE html><title>Sorry</title>"
    with pytest.raises(UserError, match="the server sent a web page"):
        download(server.url, sha256, tmp_path)
    assert list(tmp_path.glob("*.tgz*")) == list(tmp_path.glob("*.lock"))
    server.content = CONTENT
    assert download(server.url, sha256, tmp_path)[1] == SHA256


@pytest.mark.parametrize(("status", "words"), [(404, "answers 404 Not Found: check the address"), (503, "could not be downloaded")])
def test_an_error_of_the_server_is_one_sentence(server: Server, tmp_path: Path, status: int, words: str) -> None:
    server.status = status
    with pytest.raises(UserError, match=words):
        download(server.url, SHA256, tmp_path)
    assert len(server.asked) == (1 if status < 500 else module.ATTEMPTS)


def test_without_a_published_hash_the_first_one_is_kept_and_a_change_refused(server: Server, tmp_path: Path) -> None:
    path, found = download(server.url, None, tmp_path)
    assert found == SHA256
    assert download(server.url, None, tmp_path) == (path, SHA256) and len(server.asked) == 1
    path.unlink()
    server.content = CONTENT[1:]
    with pytest.raises(UserError, match="of the first download; delete .*sha256 to accept the new file"):
        download(server.url, None, tmp_path)
    assert not path.exists()


def test_a_server_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as gone:
        url = gone.url
    with pytest.raises(UserError, match="could not be downloaded"):
        download(url, SHA256, tmp_path)


def test_two_who_ask_at_once_share_one_download(server: Server, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(download(server.url, SHA256, tmp_path)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 4 and len(server.asked) == 1


@pytest.fixture
def mirror(server: Server) -> Iterator[Server]:
    with serving() as other:
        yield other


def test_a_mirror_is_asked_first(server: Server, mirror: Server, tmp_path: Path) -> None:
    mirrors = {server.url.removesuffix("/corpus/dev.tgz"): mirror.url.removesuffix("/corpus/dev.tgz"), "https://elsewhere.org": "http://no"}
    path, found = download(server.url, SHA256, tmp_path, mirrors)
    assert found == SHA256 and path.read_bytes() == CONTENT and (len(mirror.asked), len(server.asked)) == (1, 0)
    assert download(server.url, SHA256, tmp_path)[0] == path and not server.asked  # the same file as without a mirror


@pytest.mark.parametrize("status, content", [(404, CONTENT), (200, CONTENT[:-1] + b"x")])
def test_a_mirror_that_lacks_the_file_or_has_another_one_is_passed_over_with_a_word(
    status: int, content: bytes, server: Server, mirror: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror.status, mirror.content = status, content
    begin = server.url.removesuffix("/dev.tgz")
    path, found = download(server.url, SHA256, tmp_path, {begin: mirror.url.removesuffix("/dev.tgz")})
    assert found == SHA256 and path.read_bytes() == CONTENT and len(server.asked) == 1
    [record] = caplog.records
    assert mirror.url in record.getMessage() and "hardware.mirrors" in record.getMessage()
