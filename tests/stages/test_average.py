"""The stage `average` on checkpoints and shards as the stages before leave them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch.nn.functional import cross_entropy

from nmt.bundle import load_bundle
from nmt.checkpoint import file_sha256, save_checkpoint
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.symbols import BOS, EOS
from nmt.tokenizer import Tokenizer
from stages.average import main
from tests.copy_task import MODEL, TRAIN
from tests.shards import write_shards

PAIRS = [([5, 6, 7], [8, 9]), ([10], [11, 12, 13, 14]), ([4, 4], []), ([20, 21], [22])]
STEPS = (200, 400, 600)
OUTS = Path("averaged"), Path("average.json")


@pytest.fixture
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_file)


def weights(seed: int, vocabulary: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Transformer(ModelConfig.model_validate(MODEL), vocabulary).state_dict()


@pytest.fixture
def workspace(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints, two of which are to be averaged, and four pairs of validation."""
    monkeypatch.chdir(tmp_path)
    params = {
        "corpora": {"c": {"languages": {"src": "en", "tgt": "de"}}},
        "variants": {"v": {"average": {"last": 2}}},
        "hardware": {"device": "cpu", "threads": 1, "scratch": ".scratch", "decode_tokens": 100},
    }
    YAML().dump(params, tmp_path / "params.yaml")
    write_shards(PAIRS, tmp_path / "shards" / "valid", tokenizer.vocab_size, tokenizer.sha256)
    state: dict[str, Any] = {"seed": 1, "vocab_size": tokenizer.vocab_size, "model": MODEL, "train": {**TRAIN, "checkpoint_every": 200}}
    for step in STEPS:
        save_checkpoint(tmp_path / "checkpoints", weights(step, tokenizer.vocab_size), None, {"step": step, **state})
    return tmp_path


def run(tokenizer_file: Path) -> None:
    main("corpora.c", "variants.v", Path("checkpoints"), tokenizer_file, Path("shards"), *OUTS)


def test_the_folder_is_a_whole_model_of_the_last_checkpoints(workspace: Path, tokenizer_file: Path, tokenizer: Tokenizer) -> None:
    run(tokenizer_file)
    bundle = load_bundle(OUTS[0])
    last, before = (weights(step, tokenizer.vocab_size) for step in (600, 400))
    for name, tensor in bundle.model.state_dict().items():
        torch.testing.assert_close(tensor, (last[name] + before[name]) / 2, rtol=1e-6, atol=1e-7)
    assert bundle.tokenizer.sha256 == tokenizer.sha256
    assert bundle.config["languages"] == {"src": "en", "tgt": "de"}
    assert bundle.config["parameters"] == sum(weight.numel() for weight in bundle.model.parameters())  # the shared matrix counts once
    expected = [
        {"step": step, "sha256": file_sha256(workspace / "checkpoints" / f"step-{step:08}" / "model.safetensors")} for step in (400, 600)
    ]
    assert bundle.config["averaged"] == json.loads(OUTS[1].read_text("utf-8"))["checkpoints"] == expected


def test_the_losses_are_cross_entropies_over_all_tokens_of_the_validation_set(workspace: Path, tokenizer_file: Path) -> None:
    run(tokenizer_file)
    valid = json.loads(OUTS[1].read_text("utf-8"))["valid"]
    model = load_bundle(OUTS[0]).model.eval()
    for name in ("average", "last"):
        if name == "last":
            model.load_state_dict(weights(600, model.vocab_size))
        nll = 0.0
        for source, target in PAIRS:
            with torch.inference_mode():
                logits = model.logits(model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]])))[0]
            nll += cross_entropy(logits, torch.tensor([*target, EOS]), reduction="sum").item()
        assert valid[name]["tokens"] == 2 + 4 + 0 + 1 + 4  # and an end symbol each
        assert valid[name]["loss"] == pytest.approx(nll / 11, rel=1e-5)
        assert valid[name]["perplexity"] == pytest.approx(math.exp(nll / 11), rel=1e-5)
    assert valid["average"] != valid["last"]


def test_the_same_checkpoints_give_the_same_bytes(workspace: Path, tokenizer_file: Path) -> None:
    def outputs() -> dict[Path, bytes]:
        run(tokenizer_file)
        return {path: path.read_bytes() for path in [*OUTS[0].iterdir(), OUTS[1]]}

    assert outputs() == outputs()
    names = {path.name for path in workspace.iterdir()}
    assert names == {"params.yaml", "shards", "checkpoints", "averaged", "average.json"}


def test_fewer_checkpoints_than_asked_for_are_an_error_that_says_how_many_there_are(workspace: Path, tokenizer_file: Path) -> None:
    params = YAML().load(workspace / "params.yaml")
    params["variants"]["v"]["average"]["last"] = 4
    YAML().dump(params, workspace / "params.yaml")
    with pytest.raises(UserError, match=r"variants\.v\.average\.last is 4, but checkpoints holds only 3"):
        run(tokenizer_file)
    assert not any(out.exists() for out in OUTS)


def test_a_damaged_checkpoint_is_an_error_and_nothing_is_left(workspace: Path, tokenizer_file: Path) -> None:
    (workspace / "checkpoints" / "step-00000400" / "model.safetensors").write_bytes(b"\x80\x04}")
    with pytest.raises(UserError, match=r"step-00000400/model\.safetensors is damaged: .* `dvc checkout`$"):
        run(tokenizer_file)
    assert not any(out.exists() for out in OUTS)
