"""The stage `curve`: the score of each checkpoint is what translate and score say of it."""

from pathlib import Path

import pytest
import sacrebleu
import torch
from ruamel.yaml import YAML

from nmt.bundle import save_bundle
from nmt.checkpoint import open_checkpoint, save_checkpoint
from nmt.errors import UserError
from nmt.lines import read_exact, write_lines
from nmt.model import ModelConfig, Transformer
from nmt.tokenizer import Tokenizer
from stages import curve, translate
from tests.copy_task import MODEL, TRAIN

SOURCES = ["the house is old.", "", "a cat sees the tree.", "red light"]
STEPS = (200, 400)


@pytest.fixture
def workspace(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints of random weights and a valid set."""
    monkeypatch.chdir(tmp_path)
    params = {
        "corpora": {"c": {"languages": {"src": "en", "tgt": "de"}, "test": []}},
        "decode": {"beam_size": 2, "length_penalty": 0.6, "max_length_offset": 5, "stop": "exact", "precision": "float32"},
        "hardware": {"device": "cpu", "threads": 1, "decode_tokens": 100},
    }
    YAML().dump(params, Path("params.yaml"))
    Path("raw").mkdir()
    write_lines(Path("raw/valid.en"), SOURCES)
    vocabulary = Tokenizer.load(tokenizer_file).vocab_size
    for step in STEPS:
        torch.manual_seed(step)
        weights = Transformer(ModelConfig.model_validate(MODEL), vocabulary).state_dict()
        state = {"step": step, "seed": 1, "vocab_size": vocabulary, "model": MODEL, "train": TRAIN}
        save_checkpoint(Path("checkpoints"), weights, None, state)
    return tmp_path


def translations(step: int, tokenizer_file: Path) -> list[str]:
    """What the stage `translate` makes of valid with the weights of a checkpoint."""
    checkpoint = open_checkpoint(Path(f"checkpoints/step-{step:08}"))
    config = {**checkpoint.state, "tokenizer_sha256": Tokenizer.load(tokenizer_file).sha256}
    save_bundle(Path(f"model-{step}"), checkpoint.weights(), tokenizer_file, config)
    translate.main("corpora.c", Path(f"model-{step}"), Path("raw"), Path(f"translations-{step}"))
    return list(read_exact(Path(f"translations-{step}/valid.txt")))


def test_each_checkpoint_has_the_score_of_its_translations(workspace: Path, tokenizer_file: Path) -> None:
    hypotheses = [translations(step, tokenizer_file) for step in STEPS]
    references = hypotheses[1]  # so that the second scores and the first does not
    write_lines(Path("raw/valid.de"), references)
    curve.main("corpora.c", Path("checkpoints"), tokenizer_file, Path("raw"), Path("curve.tsv"))
    header, *rows = [line.split("\t") for line in Path("curve.tsv").read_text().splitlines()]
    assert header == ["update", "bleu", "chrf"] and [row[0] for row in rows] == [str(step) for step in STEPS]
    for lines, (_, bleu, chrf) in zip(hypotheses, rows, strict=True):
        assert float(bleu) == round(sacrebleu.corpus_bleu(lines, [references]).score, 2)
        assert float(chrf) == round(sacrebleu.corpus_chrf(lines, [references]).score, 2)
    assert float(rows[1][2]) == 100 > float(rows[0][2])


def test_without_checkpoints_it_says_so_and_leaves_nothing(workspace: Path, tokenizer_file: Path) -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"^empty holds no checkpoints"):
        curve.main("corpora.c", Path("empty"), tokenizer_file, Path("raw"), Path("curve.tsv"))
    assert not Path("curve.tsv").exists()
