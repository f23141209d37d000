"""nmt.checkpoint: whole or absent, every damaged byte is found, nothing is unpickled."""

import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    Checkpoint,
    DamagedCheckpoint,
    build_model,
    checkpoints,
    file_sha256,
    open_checkpoint,
    save_checkpoint,
    step_of,
    write_state,
)
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from tests.copy_task import MODEL, VOCAB, start


def weights(seed: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**{**MODEL, **changes}), VOCAB).state_dict()


def state(step: int = 3, **changes: Any) -> dict[str, Any]:
    return {"step": step, "model": MODEL, "vocab_size": VOCAB, "note": "grüße", "rows": [{"loss": 0.1 + 0.2, "valid": None}], **changes}


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    return save_checkpoint(tmp_path, weights(), {"exp_avg.x": torch.arange(5.0)}, state())


def read_all(checkpoint: Checkpoint) -> None:
    opened = open_checkpoint(checkpoint.folder)
    opened.weights()
    opened.moments()


def test_what_was_saved_is_read_again(saved: Checkpoint, tmp_path: Path) -> None:
    opened = open_checkpoint(tmp_path / "step-00000003")
    assert opened == saved and opened.step == step_of(opened.folder) == 3
    assert {key: opened.state[key] for key in state()} == state()
    assert opened.weights().keys() == weights().keys()
    assert all(torch.equal(tensor, weights()[name]) for name, tensor in opened.weights().items())
    assert torch.equal(opened.moments()["exp_avg.x"], torch.arange(5.0))
    assert opened.sha256 == file_sha256(opened.folder / WEIGHTS) == hashlib.sha256((opened.folder / WEIGHTS).read_bytes()).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_the_same_content_gives_the_same_bytes(saved: Checkpoint, tmp_path: Path) -> None:
    again = save_checkpoint(tmp_path / "again", weights(), {"exp_avg.x": torch.arange(5.0)}, state())
    assert sorted(path.name for path in again.folder.iterdir()) == sorted([WEIGHTS, OPTIMIZER, STATE])
    for file in again.folder.iterdir():
        assert file.read_bytes() == (saved.folder / file.name).read_bytes()


def test_a_later_save_of_the_same_step_takes_the_place_of_the_earlier(saved: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "step-00000003.part").mkdir()  # what a killed process left
    (tmp_path / "step-00000003.part" / "torn").touch()
    save_checkpoint(tmp_path, weights(seed=1), None, state())
    opened = open_checkpoint(saved.folder)
    assert torch.equal(opened.weights()["embedding.weight"], weights(seed=1)["embedding.weight"])
    with pytest.raises(DamagedCheckpoint, match=OPTIMIZER):
        opened.moments()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_checkpoints_are_listed_by_step_and_nothing_unfinished_is(tmp_path: Path) -> None:
    for name in ("step-00000100", "step-00000020", "step-100000000", "step-00000300.part", "step-00000200.old", "step-", "other"):
        (tmp_path / name).mkdir()
    assert [step_of(path) for path in checkpoints(tmp_path)] == [20, 100, 100_000_000]
    assert checkpoints(tmp_path / "gone") == []


def test_a_changed_byte_anywhere_in_the_state_is_found(saved: Checkpoint) -> None:
    path = saved.folder / STATE
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedCheckpoint, match="state.json is damaged"):
            open_checkpoint(saved.folder)
    path.write_bytes(whole)
    read_all(saved)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_a_changed_byte_in_the_tensors_is_found(saved: Checkpoint, name: str) -> None:
    path = saved.folder / name
    whole = path.read_bytes()
    for place in [*range(0, len(whole), len(whole) // 40 or 1), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :])
        with pytest.raises(DamagedCheckpoint, match=f"{name} is damaged"):
            read_all(saved)
    path.write_bytes(whole)
    read_all(saved)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, STATE])
def test_a_file_that_is_missing_or_cut_short_is_named(saved: Checkpoint, name: str) -> None:
    path = saved.folder / name
    whole = path.read_bytes()
    for length in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpoint, match=f"{name} is damaged"):
            read_all(saved)
    path.unlink()
    with pytest.raises(DamagedCheckpoint, match=f"{name} cannot be read: No such file"):
        read_all(saved)


@pytest.mark.parametrize("content", ["", "[]", "3", '"text"', "{}", '{"sha256": null}', '{"sha256": {}}', '{"sha256": "abc"}', "\xff"])
def test_a_state_file_of_another_kind_is_damaged(saved: Checkpoint, content: str) -> None:
    (saved.folder / STATE).write_text(content, encoding="latin-1")
    with pytest.raises(DamagedCheckpoint, match="state.json is damaged"):
        open_checkpoint(saved.folder)


class Trap:
    """Code in a pickle: it leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o700)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    torch.save({"embedding.weight": Trap(trap)}, folder / "torch")
    for content in (pickle.dumps(Trap(trap)), (folder / "torch").read_bytes()):
        (folder / WEIGHTS).write_bytes(content)
        write_state(folder, {**state(1), "sha256": {WEIGHTS: file_sha256(folder / WEIGHTS)}})
        with pytest.raises(DamagedCheckpoint, match="model.safetensors is damaged"):
            open_checkpoint(folder).weights()
    assert not trap.exists()


def test_weights_of_another_model_are_refused_by_the_names_that_differ() -> None:
    whole = weights()
    missing = {name: tensor for name, tensor in whole.items() if name != "encoder.0.feed_forward.inner.bias"}
    with pytest.raises(UserError, match=r"^here does not hold .* describes: encoder\.0\.feed_forward\.inner\.bias differ$"):
        build_model(state(), missing, "here")
    with pytest.raises(UserError, match=r"describes: extra differ$"):
        build_model(state(), {**whole, "extra": torch.zeros(1)}, "here")
    with pytest.raises(UserError, match=r"decoder\.0\.feed_forward\.inner\.bias, .* encoder\.0\.feed_forward\.inner\.weight differ$"):
        build_model(state(), weights(d_ff=48), "here")
    with pytest.raises(UserError, match=r"embedding\.weight differ$"):
        build_model(state(vocab_size=VOCAB + 1), whole, "here")


def test_a_state_whose_model_is_no_model_is_refused_by_the_parameter() -> None:
    with pytest.raises(UserError, match=r"^here: model\.layers is 0"):
        build_model(state(model={**MODEL, "layers": 0}), weights(), "here")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path: Path, number: float) -> None:
    broken = weights()
    broken["decoder.0.self_norm.bias"][3] = number
    with pytest.raises(UserError, match=r"^here: the training diverged .* decoder\.0\.self_norm\.bias"):
        build_model(state(), broken, "here")
    with pytest.raises(UserError, match=r"step-00000003: the training diverged"):
        save_checkpoint(tmp_path / "folder", broken, None, state())
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_built_with_the_weights_given() -> None:
    model = build_model(state(), weights(seed=5), "here")
    assert all(torch.equal(tensor, weights(seed=5)[name]) for name, tensor in model.state_dict().items())


SAVER = """\
import itertools, sys
from pathlib import Path
import torch
from nmt.checkpoint import save_checkpoint

for n in itertools.count():
    tensors = {"x": torch.full((60_000,), float(n)), "y": torch.full((60_000,), float(n))}
    save_checkpoint(Path("saves"), tensors, tensors, {"step": n % 5 + 1, "model": {}, "vocab_size": 0, "n": n})
    print(n, flush=True)
"""


@pytest.mark.slow
@pytest.mark.essential
def test_a_process_killed_while_it_saves_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """Steps 1 to 5 are written again and again, so that new names and replaced ones are both met."""
    chance = random.Random(3)
    (tmp_path / "saver.py").write_text(SAVER)
    for _ in range(4):
        shutil.rmtree(tmp_path / "saves", ignore_errors=True)
        process = start(tmp_path, "saver")
        end = time.monotonic() + 60
        while len(checkpoints(tmp_path / "saves")) < 2:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.005)
        time.sleep(chance.random() / 4)
        process.send_signal(signal.SIGKILL)
        reported = process.communicate()[0].split()
        found = checkpoints(tmp_path / "saves")
        assert found
        for path in found:
            checkpoint = open_checkpoint(path)
            values = {float(v) for tensors in (checkpoint.weights(), checkpoint.moments()) for t in tensors.values() for v in t.unique()}
            assert values == {float(checkpoint.state["n"])} and checkpoint.step == step_of(path)
        newest = max(json.loads((path / STATE).read_text())["n"] for path in found)
        assert newest >= int(reported[-1]) > 0
