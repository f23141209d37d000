"""Checkpoints: folders that introduce themselves, whole or absent.

    step-00002000/
        model.safetensors       weights by name
        optimizer.safetensors   Adam's moments, `exp_avg.<weight>` and `exp_avg_sq.<weight>`; only where training may go on from here
        state.json              step, model config, vocabulary size, sha256 of all three files, and what the trainer adds

A folder is written beside its final name, flushed to disk and renamed, so a name ending in digits is always whole;
the hashes tell a file that was damaged later. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nmt.config import parse
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.outputs import replace_folder

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class DamagedCheckpoint(UserError):
    """A checkpoint that is not what its own state file says."""


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds. `state` has at least `step`, `model`, `vocab_size` and `sha256` (by file name)."""

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """Updates done."""
        return int(self.state["step"])

    @property
    def sha256(self) -> str:
        """Hash of the weights file."""
        return str(self.state["sha256"][WEIGHTS])

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, on the CPU. Raises DamagedCheckpoint."""
        return self._load(WEIGHTS)

    def moments(self) -> dict[str, Tensor]:
        """Adam's moments by name, on the CPU. Raises DamagedCheckpoint, also when they are not kept here."""
        return self._load(OPTIMIZER)

    def verify(self, name: str) -> None:
        """Raise DamagedCheckpoint unless the file `name` is here and the one that was written."""
        path = self.folder / name
        try:
            found = file_sha256(path)
        except OSError as error:
            raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from None
        if found != self.state["sha256"].get(name):
            raise DamagedCheckpoint(f"{path} is damaged: it is not the file that {STATE} describes")

    def _load(self, name: str) -> dict[str, Tensor]:
        self.verify(name)
        try:
            return load_file(self.folder / name)
        except SafetensorError as error:
            raise DamagedCheckpoint(f"{self.folder / name} is damaged: {error}") from None


def save_checkpoint(folder: Path, weights: dict[str, Tensor], moments: dict[str, Tensor] | None, state: dict[str, Any]) -> Checkpoint:
    """Write a whole checkpoint to `folder/step-<step>` and return it. `state` must hold step, model and vocab_size.

    Raises UserError, and writes nothing, when a weight is not finite: nothing could go on from there.
    """
    final = folder / f"step-{state['step']:08}"
    _refuse_not_finite(weights, str(final))
    building = final.with_name(final.name + ".part")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    hashes = {WEIGHTS: _write(building / WEIGHTS, save(weights))}
    if moments is not None:
        hashes[OPTIMIZER] = _write(building / OPTIMIZER, save(moments))
    state = write_state(building, {**state, "sha256": hashes})
    replace_folder(building, final)
    sync_folder(folder)
    return Checkpoint(final, state)


def write_state(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Write `state`, in which `sha256` holds the hashes of the other files, as `state.json`; returns it with the file's own hash."""
    state = {**state, "sha256": {**state["sha256"], STATE: _own_sha256(state)}}
    _write(folder / STATE, _text(state))
    return state


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, without reading its tensors. Raises DamagedCheckpoint."""
    path = folder / STATE
    try:
        content = path.read_bytes()
        state = json.loads(content)
        if content == _text(state) and state["sha256"][STATE] == _own_sha256(state):
            return Checkpoint(folder, state)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedCheckpoint(f"{path} is damaged: its content is not what its own hash says")


def checkpoints(folder: Path) -> list[Path]:
    """The folders of whole checkpoints below `folder`, by step."""
    return sorted((path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix("step-"))


def build_model(state: dict[str, Any], weights: dict[str, Tensor], name: str) -> Transformer:
    """A model of the shape that `state` says with these weights. Raises UserError naming what differs when they do not fit."""
    model = Transformer(parse(ModelConfig, state["model"], f"{name}: model"), state["vocab_size"])
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    found = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    if expected != found:
        different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        raise UserError(f"{name} does not hold the weights of the model that it describes: {', '.join(different[:5])} differ")
    _refuse_not_finite(weights, name)
    model.load_state_dict(weights)
    return model


def file_sha256(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames within `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_not_finite(weights: dict[str, Tensor], name: str) -> None:
    broken = [key for key, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{name}: the training diverged before it, for not all numbers in {', '.join(broken[:5])} are finite")


def _own_sha256(state: dict[str, Any]) -> str:
    """Hash of a state, without the one that stands in it."""
    others = {name: sha256 for name, sha256 in state["sha256"].items() if name != STATE}
    return hashlib.sha256(_text({**state, "sha256": others})).hexdigest()


def _text(state: dict[str, Any]) -> bytes:
    return (json.dumps(state, indent=1) + "\n").encode()


def _write(path: Path, content: bytes) -> str:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return hashlib.sha256(content).hexdigest()
