"""Checkpoints: folders that introduce themselves, whole or absent.

    step-00002000/
        model.safetensors       weights by name
        optimizer.safetensors   Adam's moments, `exp_avg.<weight>` and `exp_avg_sq.<weight>`; only where training may go on from here
        state.json              step, model config, vocabulary size, sha256 of the two files, and what the trainer adds

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

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


class DamagedCheckpoint(Exception):
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

    def _load(self, name: str) -> dict[str, Tensor]:
        path = self.folder / name
        try:
            if file_sha256(path) != self.state["sha256"].get(name):
                raise DamagedCheckpoint(f"{path} is not the file that {STATE} describes")
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from None


def save_checkpoint(folder: Path, weights: dict[str, Tensor], moments: dict[str, Tensor] | None, state: dict[str, Any]) -> Checkpoint:
    """Write a whole checkpoint to `folder/step-<step>` and return it. `state` must hold step, model and vocab_size."""
    final = folder / f"step-{state['step']:08}"
    building = final.with_name(final.name + ".part")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    hashes = {WEIGHTS: _write(building / WEIGHTS, save(weights))}
    if moments is not None:
        hashes[OPTIMIZER] = _write(building / OPTIMIZER, save(moments))
    state = {**state, "sha256": hashes}
    _write(building / STATE, (json.dumps(state, indent=1) + "\n").encode())
    if final.exists():
        shutil.rmtree(final)
    building.rename(final)
    sync_folder(folder)
    return Checkpoint(final, state)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, without reading its tensors. Raises DamagedCheckpoint."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        checkpoint = Checkpoint(folder, state)
        if not isinstance(state["step"], int) or WEIGHTS not in state["sha256"]:
            raise KeyError("step")
        return checkpoint
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{folder / STATE}: {error!r}") from None


def checkpoints(folder: Path) -> list[Path]:
    """The folders of whole checkpoints below `folder`, by step."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit())


def build_model(state: dict[str, Any], weights: dict[str, Tensor], name: str) -> Transformer:
    """A model of the shape that `state` says with these weights. Raises UserError naming what differs when they do not fit."""
    model = Transformer(parse(ModelConfig, state["model"], f"{name}: model"), state["vocab_size"])
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    found = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    if expected != found:
        different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        raise UserError(f"{name} does not hold the weights of the model that it describes: {', '.join(different[:5])} differ")
    broken = [key for key, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(f"{name} holds numbers that are not finite, in {', '.join(broken[:5])}")
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


def _write(path: Path, content: bytes) -> str:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return hashlib.sha256(content).hexdigest()
