"""Files and folders that are either whole or not there: written beside their final name, renamed at the end."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def passing_folder(path: Path) -> Iterator[Path]:
    """An empty folder `path` that is there for the block only. What a killed run left of it is removed first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` that takes its place when the block ends well, and vanishes when it raises."""
    with passing_folder(path.with_name(path.name + ".part")) as building:
        yield building
        if path.exists():
            shutil.rmtree(path)
        os.replace(building, path)


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
