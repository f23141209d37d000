"""A model folder is read as it was written, or refused with what is wrong in it."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.bundle import load_bundle, save_bundle
from nmt.checkpoint import file_sha256
from nmt.errors import UserError


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    shutil.copytree(model_folder, tmp_path / "averaged")
    return tmp_path / "averaged"


def refused(folder: Path) -> str:
    """The message with which the folder is refused: one sentence that names it."""
    with pytest.raises(UserError) as error:
        load_bundle(folder)
    message = str(error.value)
    assert str(folder) in message and "\n" not in message
    return message


def with_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8")) | {"weights_sha256": file_sha256(folder / "model.safetensors")}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def test_what_is_written_is_read(model_folder: Path, tokenizer_file: Path) -> None:
    bundle = load_bundle(model_folder)
    weights = load_file(model_folder / "model.safetensors")
    assert bundle.model.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in bundle.model.state_dict().items())
    assert (model_folder / "tokenizer.model").read_bytes() == tokenizer_file.read_bytes()
    assert bundle.tokenizer.vocab_size == bundle.model.vocab_size == bundle.config["vocab_size"] == 330
    assert sorted(path.name for path in model_folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert [path.name for path in model_folder.parent.iterdir()] == ["averaged"]
    assert len({path.stat().st_mode for path in model_folder.iterdir()}) == 1  # no file is for its owner alone


def test_the_same_model_gives_the_same_bytes_whatever_stood_there_before(model_folder: Path, folder: Path, tokenizer_file: Path) -> None:
    (folder / "left.over").touch()
    bundle = load_bundle(model_folder)
    weights = dict(reversed(bundle.model.state_dict().items()))
    save_bundle(folder, weights, tokenizer_file, bundle.config)
    for path in model_folder.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert not (folder / "left.over").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    assert f"{name} is missing" in refused(folder)


@pytest.mark.parametrize("name", ["nowhere", "averaged/config.json"])
def test_a_path_that_is_no_folder_is_refused(name: str, folder: Path) -> None:
    assert "is not a folder" in refused(folder.parent / name)


def test_a_weight_that_is_not_finite_is_named(folder: Path) -> None:
    with_weights(folder, lambda weights: weights["decoder.0.cross_norm.bias"].__setitem__(3, math.nan))
    message = refused(folder)
    assert "decoder.0.cross_norm.bias" in message and "finite" in message and "encoder" not in message


def test_weights_of_another_shape_missing_ones_and_ones_too_many_are_named(folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.0.feed_forward.inner.weight"] = weights["encoder.0.feed_forward.inner.weight"].T.contiguous()
        del weights["decoder.0.self_norm.weight"]
        weights["decoder.7.self_norm.weight"] = torch.zeros(8)

    with_weights(folder, change)
    message = refused(folder)
    for name in ("encoder.0.feed_forward.inner.weight", "decoder.0.self_norm.weight", "decoder.7.self_norm.weight"):
        assert name in message
    assert "embedding" not in message


def test_another_tokenizer_is_refused(folder: Path) -> None:
    from nmt.tokenizer import TokenizerConfig, train_tokenizer

    config = TokenizerConfig(type="bpe", vocab_size=330, normalization="identity", sample_lines=100)
    other = train_tokenizer(
        (f"other words {number}" * 3 for number in range(1000, 1100)), config.model_copy(update={"vocab_size": 300}), "x"
    )
    (folder / "tokenizer.model").write_bytes(other)
    assert "tokenizer.model is not the tokenizer that the model was trained with" in refused(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
@pytest.mark.parametrize("damage", [b"", b"\x80\x04}", b"half"])
def test_a_damaged_file_is_named(name: str, damage: bytes, folder: Path) -> None:
    """A pickle too: nothing is ever unpickled."""
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage == b"half" else damage)
    message = refused(folder)
    assert name in message and ("dvc checkout" in message or "run the stage that wrote it again" in message)
    assert not re.search(r"Error|\(.*\)$", message)  # nothing of what Python or a library says of it


def test_one_flipped_bit_in_the_weights_is_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    assert "model.safetensors is damaged, for it is not the file that config.json describes: copy it anew" in refused(folder)


@pytest.mark.parametrize("key", ["model", "vocab_size", "tokenizer_sha256", "weights_sha256"])
def test_a_fact_missing_from_the_config_is_named(key: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    del config[key]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert f"config.json is damaged, for it has no {key}: copy it anew" in refused(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("vocab_size", "330"), ("vocab_size", 331), ("model", 3), ("model", {}), ("tokenizer_sha256", 7)]
)
def test_a_fact_that_cannot_be_is_named_with_the_file(key: str, value: object, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8")) | {key: value}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    message = refused(folder)
    assert ("config.json" in message and key in message) or "tokenizer.model is not the tokenizer" in message


@pytest.mark.parametrize("content", ["[]", "7", '{"model": 3, "vocab_size": 330}'])
def test_a_config_that_is_something_else_is_refused(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content, "utf-8")
    refused(folder)


def test_nothing_is_left_of_a_model_that_could_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_bundle(tmp_path / "averaged", {"a": torch.zeros(1)}, tmp_path / "no tokenizer", {})
    assert list(tmp_path.iterdir()) == []
