"""Downloads that are resumed where they were cut, and trusted only after their SHA-256 is what it should be.

<folder>/dev-1f0c6a41.tgz           whole and verified; verified again at every use
<folder>/dev-1f0c6a41.tgz.part      what has come so far
<folder>/dev-1f0c6a41.tgz.sha256    the hash of the first download, where none was published
<folder>/dev-1f0c6a41.tgz.lock      held by the process that downloads it: others wait and find it there
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from nmt.errors import UserError
from nmt.progress import Progress

log = logging.getLogger(__name__)

MEGABYTE = 1_000_000
ATTEMPTS = 5  # in a row that bring nothing new
TIMEOUT = 60.0  # seconds without a byte


def sha256_of(path: Path) -> str:
    """The SHA-256 of the bytes of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(url: str, sha256: str | None, folder: Path, mirrors: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """The file behind `url` in `folder`, downloaded unless it is there already, and its SHA-256.

    `mirrors` maps the beginning of an address to the one to ask first: {"https://www.statmt.org": "http://files.our.net/statmt"}. With
    `sha256` None the hash of the first download is recorded beside it and required ever after. Proxies of the environment are used.
    Raises UserError when no server can be reached or what it sends is not what it should be.
    """
    name = PurePosixPath(urlsplit(url).path)
    path = folder / f"{name.stem}-{hashlib.sha256(url.encode()).hexdigest()[:8]}{name.suffix}"
    part, record = path.with_name(path.name + ".part"), path.with_name(path.name + ".sha256")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path):
        expected = sha256 or (record.read_text("ascii").strip() if record.exists() else None)
        if expected is not None and path.exists() and sha256_of(path) == expected:
            return path, expected
        whose = "in params.yaml" if sha256 else f"of the first download; delete {record} to accept the new file"
        places = [place + url.removeprefix(begin) for begin, place in (mirrors or {}).items() if url.startswith(begin)]
        for place in places:
            try:
                found = _verified(place, expected, whose, part)
                break
            except UserError as error:
                log.warning("hardware.mirrors: %s; the next address is asked", error)
        else:
            found = _verified(url, expected, whose, part)
        if sha256 is None:
            record.write_text(found + "\n", "ascii")
        os.replace(part, path)
    return path, found


def _verified(url: str, expected: str | None, whose: str, part: Path) -> str:
    """Make `part` what it should be, and return its hash. Raises UserError, and leaves none, when it is something else."""
    found = _bring(url, expected, part)
    if found != expected and (expected is not None or _is_web_page(part)):
        what = "a web page" if _is_web_page(part) else f"a file with the SHA-256 {found}"
        part.unlink()
        if expected is None:
            raise UserError(f"{url}: the server sent {what} instead of the archive: check the address")
        raise UserError(f"{url}: the server sent {what}, refused because it is not {expected} ({whose})")
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file of `path`; a second process waits until the first has let it go, also by dying."""
    with path.with_name(path.name + ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _bring(url: str, expected: str | None, part: Path) -> str:
    """Make `part` complete; returns its hash. What was resumed and turns out wrong is brought once more from its first byte."""
    resumed = part.exists()
    _complete(url, part)
    found = sha256_of(part)
    if resumed and expected is not None and found != expected:
        part.unlink()
        _complete(url, part)
        found = sha256_of(part)
    return found


def _complete(url: str, part: Path) -> None:
    """Repeat requests until `part` is complete, as long as they bring anything."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _request(url, part)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection
            if isinstance(error, HTTPError) and error.code < 500:
                raise UserError(f"{url}: the server answers {error.code} {error.reason}: check the address") from None
            failures = 0 if _size(part) > before else failures + 1
            if failures == ATTEMPTS:
                raise UserError(f"{url} could not be downloaded ({error}): run it again, it goes on where it stopped") from None
            time.sleep(failures)


def _request(url: str, part: Path) -> None:
    """One request for what is missing of `part`. Raises OSError or HTTPException when the transfer ends early."""
    have = _size(part)
    try:
        response = urlopen(Request(url, headers={"Range": f"bytes={have}-"} if have else {}), timeout=TIMEOUT)
    except HTTPError as error:
        if have and error.code == 416:  # nothing lies behind the bytes we have: the hash tells whether they are the right ones
            return error.close()
        raise
    with response:
        if response.status != 206:  # the server sends the whole, whatever was asked for
            have = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        megabytes = None if total is None else total // MEGABYTE
        progress = Progress(f"download {url}", megabytes, "MB", have // MEGABYTE)
        with part.open("ab" if have else "wb", buffering=0) as stream, progress:  # as it comes: of a slow transfer nothing is lost
            while chunk := response.read1(1 << 20):
                stream.write(chunk)
                have += len(chunk)
                progress.advance(have // MEGABYTE - progress.done)
    if total is not None and have < total:
        raise ConnectionError(f"the connection was cut after {have:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_web_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(512).lstrip().startswith(b"<")
