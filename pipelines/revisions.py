"""What one revision says of one model: how it was made, by dvc.lock, and what came of it, by its files.

dvc.lock is the record of what has run: parameters, code and data by hash, of every stage that the scores come from. A model is named as its
stages are, `demo-tiny` for score@demo-tiny, whose outputs are told apart by their file names.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from pipelines import dvc

SEED = "seed"


@dataclass
class Model:
    """One model of one revision."""

    revision: str
    name: str
    stages: dict[str, Any]  # of dvc.lock, those that the scores come from
    files: Any = field(repr=False)  # a file system

    @cached_property
    def paths(self) -> dict[str, str]:
        """The outputs by file name: scores.json, training.tsv, …"""
        own = [name for name in self.stages if name.endswith(f"@{self.name}")]
        return {PurePosixPath(out["path"]).name: out["path"] for name in own for out in self.stages[name].get("outs", [])}

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """What the stages ran with, by dotted name."""
        return {
            name: value
            for stage in self.stages.values()
            for values in stage.get("params", {}).values()
            for section, content in values.items()
            for name, value in _flat(section, content)
        }

    @cached_property
    def code(self) -> dict[str, str]:
        """The hash of every code file that a stage ran on."""
        made = self.data
        return {dep["path"]: dep["md5"] for stage in self.stages.values() for dep in stage.get("deps", []) if dep["path"] not in made}

    @cached_property
    def data(self) -> dict[str, str]:
        """The hash of every output of the stages."""
        return {out["path"]: out["md5"] for stage in self.stages.values() for out in stage.get("outs", [])}

    @property
    def seed(self) -> Any:
        """The seed of the training, None where there is none."""
        return self.parameters.get(SEED)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """All that decides the result but the seed: models with the same one are trainings of the same thing."""
        parameters = {name: value for name, value in self.parameters.items() if name != SEED}
        first = {path: md5 for stage in self.stages.values() if not self._made(stage) for path, md5 in _outs(stage)}
        return {"parameters": parameters, "code": self.code, "data": first}

    def bytes(self, name: str) -> bytes | None:
        """The content of the output called `name`; None where the model has none. Raises DvcError where it is in no cache."""
        if name not in self.paths:
            return None
        try:
            return bytes(self.files.read_bytes(self.paths[name]))
        except FileNotFoundError:
            raise dvc.DvcError(
                f"{self.revision}: {self.paths[name]} is neither here nor in the cache: `dvc pull` it, or run `dvc repro` in that revision"
            ) from None

    def json(self, name: str) -> Any:
        """The JSON output called `name`, or None."""
        content = self.bytes(name)
        return None if content is None else json.loads(content)

    def table(self, name: str) -> pd.DataFrame | None:
        """The output called `name`, a .tsv or .parquet, or None."""
        content = self.bytes(name)
        if content is None:
            return None
        stream = io.BytesIO(content)
        return pd.read_parquet(stream) if name.endswith(".parquet") else pd.read_csv(stream, sep="\t")

    def manifest(self) -> dict[str, Any] | None:
        """What the stage `fetch` says of the corpus, or None."""
        path = next((path for path in self.data if PurePosixPath(path).name == "manifest.json"), None)
        return json.loads(self.files.read_bytes(path)) if path and self.files.exists(path) else None

    def _made(self, stage: dict[str, Any]) -> bool:
        """Whether a stage has dependencies that other stages made."""
        return any(dep["path"] in self.data for dep in stage.get("deps", []))


def models(revision: str) -> dict[str, Model]:
    """The scored models of a revision, by name; none where nothing has run. Raises DvcError where there is no such revision."""
    files = dvc.open_revision(revision)
    if not files.exists("dvc.lock"):
        return {}
    lock = YAML(typ="safe").load(files.read_text("dvc.lock"))["stages"]
    names = [stage.partition("@")[2] for stage in lock if stage.startswith("score@")]
    return {name: Model(revision, name, dict(_history(lock, f"score@{name}", name)), files) for name in names}


def model(revision: str, name: str | None) -> Model:
    """One model of a revision; without a name, the only one. Raises DvcError where it has none, or several and no name is given."""
    found = models(revision)
    if not found:
        raise dvc.DvcError(f"{revision} has no scores: run `dvc repro` there first")
    if name is None and len(found) > 1:
        raise dvc.DvcError(f"{revision} has the models {', '.join(found)}: choose one, --model {next(iter(found))}")
    if name is not None and name not in found:
        raise dvc.DvcError(f"{revision} has no model {name}, only {', '.join(found)}")
    return found[name or next(iter(found))]


def siblings(chosen: Model) -> list[Model]:
    """`chosen`, and behind it the experiments that are the same but for the seed, one a seed, by seed."""
    found = {chosen.seed: chosen}
    for name in dvc.experiments():
        other = models(name).get(chosen.name)
        if other and other.recipe == chosen.recipe:
            found.setdefault(other.seed, other)
    return sorted(found.values(), key=lambda one: (one is not chosen, one.seed))


def _history(lock: dict[str, Any], stage: str, name: str) -> Iterator[tuple[str, Any]]:
    """The stages that `stage` comes from, by dvc.lock, itself among them, and those that draw its curves."""
    makers = {path: other for other, content in lock.items() for path, _ in _outs(content)}
    wanted, found = [stage, *(other for other in (f"curve@{name}",) if other in lock)], set()
    while wanted:
        one = wanted.pop()
        if one not in found:
            found.add(one)
            wanted += [makers[dep["path"]] for dep in lock[one].get("deps", []) if dep["path"] in makers]
    yield from ((other, content) for other, content in lock.items() if other in found)


def _outs(stage: dict[str, Any]) -> list[tuple[str, str]]:
    return [(out["path"], out["md5"]) for out in stage.get("outs", [])]


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, content in value.items():
            yield from _flat(f"{name}.{key}", content)
    else:
        yield name, value
