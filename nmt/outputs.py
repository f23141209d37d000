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
        replace_folder(building, path)


def replace_folder(building: Path, path: Path) -> None:
    """Give the finished folder `building` the name `path`, which never stands for half of one, whenever the process is killed."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.replace(path, old)
    os.replace(building, path)
    shutil.rmtree(old, ignore_errors=True)


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
