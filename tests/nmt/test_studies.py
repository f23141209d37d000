"""The studies measure what they say: averages of the last checkpoints, and texts of the length that was asked for."""

import math
from pathlib import Path

import pytest
import torch

from nmt.average import average
from nmt.bundle import load_bundle
from nmt.checkpoint import build_model, save_checkpoint
from nmt.model import ModelConfig, Transformer
from nmt.search import DecodeConfig
from nmt.studies import by_average, by_length, joined
from nmt.tokenizer import Tokenizer
from nmt.validation import held_out_loss
from tests.shards import write_shards

DECODE = DecodeConfig(beam_size=1, length_penalty=0.6, max_length_offset=2, stop="exact", precision="float32")
CPU = torch.device("cpu")


def test_texts_are_lines_in_order_of_about_the_length(tokenizer_file: Path, sentences: list[str]) -> None:
    tokenizer = Tokenizer.load(tokenizer_file)
    pairs = [(line, line[::-1]) for line in sentences]
    groups = joined(pairs, [20, 60, 100_000], tokenizer, 7)
    assert list(groups) == [20, 60]  # the text has no four of the longest
    for length, texts in groups.items():
        assert len(texts) == 7
        assert all(length <= len(ids) + 2 and len(ids) <= 2 * length + 2 for ids in tokenizer.encode([src for src, _ in texts]))
        everything = " ".join(sentences)
        places = [everything.index(src) for src, _ in texts]
        assert places == sorted(places)
        for src, tgt in texts:
            assert sorted(src) == sorted(tgt)  # the same lines of both sides


def test_the_loss_of_a_length_is_that_of_the_validation(model_folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    bundle = load_bundle(model_folder)
    bundle.model.eval()
    pairs = [(line, line) for line in sentences[:9]]
    [point] = by_length(bundle, {5: pairs}, DECODE, CPU, 1000)
    ids = bundle.tokenizer.encode(sentences[:9])
    write_shards(zip(ids, ids, strict=True), tmp_path / "valid", bundle.tokenizer.vocab_size, "0")
    expected = held_out_loss(bundle.model, tmp_path / "valid", CPU, "float32")
    assert point.loss == pytest.approx(expected.loss, rel=1e-5)
    assert point.at == sum(map(len, ids)) / 9 and 0 <= point.bleu <= 100


def test_averages_are_of_the_last_one_two_and_more(tokenizer_file: Path, tmp_path: Path, sentences: list[str]) -> None:
    tokenizer = Tokenizer.load(tokenizer_file)
    shape = {"layers": 1, "d_model": 8, "d_ff": 16, "heads": 2, "d_k": 4, "d_v": 4, "dropout": 0.0, "positions": "sinusoidal"}
    saved = []
    for step in (10, 20, 30):
        torch.manual_seed(step)
        model = Transformer(ModelConfig.model_validate(shape), tokenizer.vocab_size)
        facts = {"step": step, "model": shape, "vocab_size": tokenizer.vocab_size, "seed": 1, "train": {"checkpoint_every": 10}}
        saved.append(save_checkpoint(tmp_path, model.state_dict(), None, facts))
    ids = tokenizer.encode(sentences[:20])
    write_shards(zip(ids, ids, strict=True), tmp_path / "shards/valid", tokenizer.vocab_size, "0")
    points = list(by_average(saved, tmp_path / "shards", tokenizer, [("a cat", "a cat")], DECODE, CPU, 1000))
    assert [point.at for point in points] == [1, 2, 3]
    for count, point in enumerate(points, start=1):
        expected = held_out_loss(build_model(saved[-1].state, average(saved[-count:]), ""), tmp_path / "shards/valid", CPU, "float32").loss
        assert math.isclose(point.loss, expected, rel_tol=1e-6)
