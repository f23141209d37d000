"""transformers gives each translation the probability that this model gives it, and reads text as the same tokens."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from nmt.batches import padded
from nmt.bundle import Bundle, load_bundle
from nmt.export_transformers import Engine, weights, write
from nmt.model import ModelConfig, Transformer
from nmt.proof import Search
from nmt.rescoring import rescore
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

TEXTS = [
    "",
    "the  house",
    " the house ",
    "a </s> b <pad> c <unk>",
    "x\u2028y",
    "\u65e5\u672c \U0001f600",
    "<0x41> \u2581x",
    "tab\there",
    "n\u00e4h , it ' s .",
]


@pytest.fixture(scope="module")
def bundle(taught_model_folder: Path) -> Bundle:
    return load_bundle(taught_model_folder)


@pytest.fixture(scope="module")
def engine(bundle: Bundle, taught_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("hf")
    with warnings.catch_warnings(action="ignore"):
        write(bundle, taught_model_folder, folder, "float32")
        return Engine(folder, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.essential
def test_the_logits_are_the_same_in_both(bundle: Bundle, engine: Engine, sentences: list[str]) -> None:
    src, tgt = (padded(bundle.tokenizer.encode(lines)) for lines in (sentences[:40], sentences[40:80]))
    before = torch.cat([torch.full((40, 1), BOS), tgt[:, :-1]], 1)
    with torch.no_grad():
        found = engine.model(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=before).logits
        expected = bundle.model.eval().logits(bundle.model(src, before))
    possible = [token for token in range(bundle.model.vocab_size) if token not in (PAD, UNKNOWN, BOS)]
    assert torch.allclose(found[:, :, possible][tgt != PAD], expected[:, :, possible][tgt != PAD], atol=1e-4)
    assert (found[:, :, [PAD, UNKNOWN, BOS]] < -9000).all()


@pytest.mark.slow
def test_the_engine_tells_its_tokens_text_score_and_end(bundle: Bundle, engine: Engine, sentences: list[str]) -> None:
    sources = bundle.tokenizer.encode(sentences[:20])
    for search in (Search(4, 0.6), Search(2, 1.0)):
        found = engine.translate(sentences[:20], 80, search)
        assert [one.source for one in found] == sources
        assert [one.text for one in found] == [bundle.tokenizer.decode(one.ids) for one in found]
        log_probs = rescore(bundle.model, sources, [one.ids for one in found])
        for one, log_prob in zip(found, log_probs, strict=True):
            assert one.finished and one.score == pytest.approx(log_prob.producible / (len(one.ids) + 1) ** search.alpha, abs=1e-5)
    assert not any(one.finished for one in engine.translate(sentences[:20], 1, Search()))


@pytest.mark.slow
def test_text_is_read_and_written_as_the_same_tokens(bundle: Bundle, engine: Engine, sentences: list[str]) -> None:
    texts = [*TEXTS, *sentences[:50]]
    ids = bundle.tokenizer.encode(texts)
    assert engine.tokenizer(texts)["input_ids"] == [[*line, EOS] for line in ids]
    for line in ids:
        assert engine.tokenizer.decode([*line, EOS], skip_special_tokens=True) == bundle.tokenizer.decode(line).strip()


@pytest.mark.slow
def test_a_plain_load_translates_as_the_proof_did(engine: Engine, sentences: list[str]) -> None:
    """What a user types who knows nothing of this project: the checkpoint's own generation_config decides."""
    found = engine.translate(sentences[:10], 80, Search())
    tokens = engine.tokenizer(sentences[:10], return_tensors="pt", padding=True)
    plain = engine.tokenizer.batch_decode(engine.model.generate(**tokens), skip_special_tokens=True)
    assert plain == [one.text for one in found]


def test_dimensions_are_permuted_so_that_sines_come_first() -> None:
    model = Transformer(
        ModelConfig.model_validate(
            {"layers": 1, "d_model": 4, "d_ff": 3, "heads": 2, "d_k": 2, "d_v": 2, "dropout": 0.1, "positions": "sinusoidal"}
        ),
        5,
    )
    with torch.no_grad():
        model.embedding.weight.copy_(torch.arange(4.0).expand(5, 4))
        layer = model.decoder[0]
        layer.feed_forward.inner.weight.copy_(torch.arange(4.0).expand(3, 4))  # type: ignore[union-attr]
        layer.feed_forward.outer.bias.copy_(torch.arange(4.0))  # type: ignore[union-attr]
        # Rows stand head by head: queries, keys, values of the first head, then of the second.
        layer.self_attention.query_key_value.bias.copy_(torch.arange(12.0))  # type: ignore[union-attr]
    found = weights(model)
    assert found["model.shared.weight"][0].tolist() == [0, 2, 1, 3]
    assert found["model.decoder.layers.0.fc1.weight"][0].tolist() == [0, 2, 1, 3]
    assert found["model.decoder.layers.0.fc2.bias"].tolist() == [0, 2, 1, 3]
    for name, rows in (("q", [0, 1, 6, 7]), ("k", [2, 3, 8, 9]), ("v", [4, 5, 10, 11])):
        assert found[f"model.decoder.layers.0.self_attn.{name}_proj.bias"].tolist() == rows


def test_the_special_symbols_are_named_in_the_files(engine: Engine) -> None:
    folder = Path(engine.tokenizer.name_or_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert [config[f"{name}_token_id"] for name in ("pad", "bos", "eos", "decoder_start")] == [PAD, BOS, EOS, BOS]
