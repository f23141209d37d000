"""Files and folders that are either whole or not there: written beside their final name, renamed at the end."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` that takes its place when the block ends well, and vanishes when it raises."""
    building = path.with_name(path.name + ".part")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
        if path.exists():
            shutil.rmtree(path)
        os.replace(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name of a file beside `path` that takes its place when the block ends well, and vanishes when it raises."""
    building = path.with_name(path.name + ".part")
    building.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield building
        os.replace(building, path)
    finally:
        building.unlink(missing_ok=True)
