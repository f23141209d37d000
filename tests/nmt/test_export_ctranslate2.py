"""CTranslate2 gives each translation the probability that this model gives it."""

import json
from pathlib import Path

import ctranslate2
import pytest
import torch

from nmt.bundle import Bundle, load_bundle
from nmt.export_ctranslate2 import Engine, write
from nmt.proof import Search, Text, failures, prove
from nmt.rescoring import rescore
from nmt.symbols import BOS, PAD, UNKNOWN


@pytest.fixture(scope="module")
def bundle(taught_model_folder: Path) -> Bundle:
    return load_bundle(taught_model_folder)


@pytest.fixture(scope="module")
def exported(bundle: Bundle, taught_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ct2")
    write(bundle, taught_model_folder, folder, "float32")
    return folder


def test_any_target_has_the_same_log_probability_in_both(bundle: Bundle, exported: Path, sentences: list[str]) -> None:
    """Sources and targets that have nothing to do with each other, so that no token is sure."""
    sources, targets = bundle.tokenizer.encode(sentences[:40]), bundle.tokenizer.encode(sentences[40:80])
    pieces = bundle.tokenizer.pieces
    scored = ctranslate2.Translator(str(exported)).score_batch([pieces(ids) for ids in sources], [pieces(ids) for ids in targets])
    expected = [one.producible for one in rescore(bundle.model, sources, targets)]
    assert [sum(one.log_probs) for one in scored] == pytest.approx(expected, abs=1e-4)


def test_the_engine_tells_its_tokens_text_score_and_end(bundle: Bundle, exported: Path, sentences: list[str]) -> None:
    engine = Engine(exported, torch.device("cpu"))
    sources = bundle.tokenizer.encode(sentences[:20])
    for search in (Search(4, 0.6), Search(1, 0.0), Search(2, 1.0)):
        found = engine.translate(sentences[:20], 80, search)
        assert [one.source for one in found] == sources
        assert [one.text for one in found] == [bundle.tokenizer.decode(one.ids) for one in found]
        log_probs = rescore(bundle.model, sources, [one.ids for one in found])
        for one, log_prob in zip(found, log_probs, strict=True):
            assert one.finished and one.score == pytest.approx(log_prob.producible / (len(one.ids) + 1) ** search.alpha, rel=1e-5, abs=1e-5)
    assert not any(one.finished for one in engine.translate(sentences[:20], 1, Search(1, 0.6)))


@pytest.mark.slow
def test_a_beam_of_one_finds_the_same_in_both(bundle: Bundle, exported: Path, sentences: list[str]) -> None:
    text = Text("source", "reference", sentences[:300], sentences[:300])
    proof = prove(
        bundle,
        Engine(exported, torch.device("cpu")),
        "float32",
        text,
        Search(beam_size=1),
        torch.device("cpu"),
        2000,
        lambda lines, work: None,
    )
    assert failures(proof) == [] and proof["compared"] - proof["cut"] > 200 and proof["identical_share"] >= 0.995


def test_what_this_project_never_produces_the_engine_does_not_either(model_folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    """Of random weights any token may be the most probable."""
    write(load_bundle(model_folder), model_folder, tmp_path, "float32")
    found = Engine(tmp_path, torch.device("cpu")).translate(sentences[:100], 60, Search())
    assert not {token for one in found for token in one.ids} & {PAD, UNKNOWN, BOS}


def test_writing_changes_nothing_in_the_model(bundle: Bundle, taught_model_folder: Path, tmp_path: Path) -> None:
    """The engine quantizes arrays where they lie."""
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    write(bundle, taught_model_folder, tmp_path, "int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in bundle.model.state_dict().items())


def test_the_same_model_gives_the_same_files(bundle: Bundle, taught_model_folder: Path, exported: Path, tmp_path: Path) -> None:
    write(bundle, taught_model_folder, tmp_path, "float32")
    assert all((tmp_path / path.name).read_bytes() == path.read_bytes() for path in exported.iterdir())
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["decoder_start_token"] == "<s>"
