"""Text from the catalogue of the field: any dataset that mtdata (extra `corpora`) knows, by its id, as `mtdata list -l eng-deu` prints it.

{id: Statmt-europarl-10-deu-eng, src: 2, tgt: 1, sha256: null}    its languages stand in the id in the order of its columns

<downloads>/mtdata/Statmt-europarl-10-deu-eng.tsv           what `mtdata echo` prints, whole and verified
<downloads>/mtdata/Statmt-europarl-10-deu-eng.tsv.sha256    the hash of the first time, where params.yaml names none
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from nmt.config import Config
from nmt.download import locked, sha256_of
from nmt.errors import UserError
from nmt.outputs import whole_file
from nmt.pairs import TRAIN, Counted, Pair
from nmt.tables import side_lines


class Dataset(Config):
    """A dataset, its columns for either side, and the SHA-256 of its text; null: that of the first time is kept and required."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+){3,}$")
    src: int = Field(ge=1)
    tgt: int = Field(ge=1)
    sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")


class MtdataSource(Config):
    """Section `corpora.*.source` of kind mtdata: for each set its datasets, in order. Sets left out are held out from train."""

    kind: Literal["mtdata"]
    sets: dict[str, list[Dataset]] = Field(min_length=1)

    @model_validator(mode="after")
    def _keep_sets_apart(self) -> Self:
        train = {dataset.id for dataset in self.sets.get(TRAIN, [])}
        for name in self.sets.keys() - {TRAIN}:
            if both := train & {dataset.id for dataset in self.sets[name]}:
                raise ValueError(f"{min(both)} is in train and in {name}: what is trained on cannot test")
        return self


def fetch_datasets(source: MtdataSource, downloads: Path) -> dict[str, tuple[Path, str]]:
    """The text of every dataset as a table, and its SHA-256, by id; brought by mtdata unless it is there already.

    Raises UserError when mtdata is not installed or fails, and when a text is another than it was or should be.
    """
    folder = downloads / "mtdata"
    folder.mkdir(parents=True, exist_ok=True)
    return {dataset.id: _fetch(dataset, folder) for datasets in source.sets.values() for dataset in datasets}


def dataset_pairs(source: MtdataSource, paths: dict[str, Path], counted: Counted) -> Iterator[Pair]:
    """The pairs of all sets, each dataset a part named by its id."""
    for name, datasets in source.sets.items():
        for dataset in datasets:
            path = paths[dataset.id]
            sides = (side_lines(f"{path}:{dataset.src}", counted), side_lines(f"{path}:{dataset.tgt}"))
            yield from (Pair(name, dataset.id, *lines) for lines in zip(*sides, strict=True))


def _fetch(dataset: Dataset, folder: Path) -> tuple[Path, str]:
    path, record = folder / f"{dataset.id}.tsv", folder / f"{dataset.id}.tsv.sha256"
    with locked(path):
        expected = dataset.sha256 or (record.read_text("ascii").strip() if record.exists() else None)
        if expected is not None and path.exists() and sha256_of(path) == expected:
            return path, expected
        if find_spec("mtdata") is None:
            raise UserError("a source of kind mtdata needs mtdata (extra corpora): pip install mtdata==0.5.1")
        with whole_file(path) as building:
            with building.open("wb") as stream:
                command = [sys.executable, "-m", "mtdata", "-no-pb", "echo", dataset.id]
                code = subprocess.run(command, stdout=stream, env=os.environ | {"MTDATA": str(folder.resolve())}).returncode
            if code != 0 or building.stat().st_size == 0:
                raise UserError(f"mtdata could not bring {dataset.id}, for the reason above: check the network and the id (`mtdata list`)")
            found = sha256_of(building)
            if expected is not None and found != expected:
                whose = "in params.yaml" if dataset.sha256 else f"of the first time; delete {record} to accept the new text"
                raise UserError(f"{dataset.id} has the SHA-256 {found}, refused because it is not {expected} ({whose})")
        if dataset.sha256 is None:
            record.write_text(found + "\n", "ascii")
    return path, found
