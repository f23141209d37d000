"""A folder for unfinished work, found again by the fingerprint of all that decides the result, and held by one process.

.scratch/train/6f1c…/lock           names the process that holds it
.scratch/train/6f1c…/checkpoints/   whatever the holder writes
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt.errors import UserError


def fingerprint(facts: dict[str, Any]) -> str:
    """A name that is equal for equal `facts` (JSON values) and differs for others."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Make `folder` and hold it alone until the block ends, or the process does. Raises UserError when another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"hardware.scratch: {folder} cannot be made ({error.strerror}): name another folder") from None
    with (folder / "lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UserError(f"{folder} is in use by {lock.read().strip() or 'another process'}: wait until it ends, or stop it") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        lock.flush()
        yield folder


def link_or_copy(source: Path, target: Path) -> None:
    """Put the file `source` at `target` too: without copying where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
