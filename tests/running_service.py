"""`nmt serve` as tests run it: as a process of its own, or within the test, and a request to it."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import nmt.server
from nmt.bundle import load_bundle
from nmt.search import DecodeConfig
from nmt.server import listen
from nmt.service import Limits, build_app
from nmt.translation import Translator

PROJECT = Path(__file__).resolve().parent.parent


def translator(folder: Path) -> Translator:
    config = DecodeConfig(beam_size=4, length_penalty=0.6, max_length_offset=50, stop="exact", precision="float32")
    return Translator(load_bundle(folder), config, torch.device("cpu"), 1000)


def start(model: Path) -> tuple[subprocess.Popen[str], int]:
    """`nmt serve` on a free port, and the port, once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt.cli", "serve", str(model), "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", first)
    if found is None:
        process.kill()
        raise AssertionError(first + process.stderr.read())
    return process, int(found[1])


def ask(port: int, path: str, body: Any = None, raw: bytes | None = None, method: str | None = None) -> tuple[int, Any]:
    """Status and content of one request; a content that is not JSON as text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        sent = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection.request(
            method or ("GET" if sent is None else "POST"), path, sent, {"Content-Type": "application/json"} if sent is not None else {}
        )
        response = connection.getresponse()
        content = response.read().decode()
        return response.status, json.loads(content) if response.headers["Content-Type"] == "application/json" else content
    finally:
        connection.close()


@contextmanager
def in_thread(folder: Path, limits: Limits = Limits()) -> Iterator[int]:  # noqa: B008
    """The same within this process, whose limits a test can change."""
    listener = listen("127.0.0.1", 0)
    bundle = load_bundle(folder)
    server = nmt.server.server(build_app(bundle, translator(folder), limits))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
