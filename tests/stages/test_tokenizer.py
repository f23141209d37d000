"""The stage `tokenizer` on cleaned text."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from nmt.lines import write_lines
from nmt.tokenizer import Tokenizer
from stages.tokenizer import main

MODEL = Path("tokenizer.model")


@pytest.fixture
def workspace(tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean").mkdir()
    write_lines(tmp_path / "clean" / "train.en", sentences[:300])
    write_lines(tmp_path / "clean" / "train.de", sentences[300:])
    return tmp_path


def run(**changed: Any) -> bytes:
    config = {"type": "bpe", "vocab_size": 320, "normalization": "identity", "sample_lines": 1000, **changed}
    YAML().dump({"corpora": {"c": {"languages": {"src": "en", "tgt": "de"}, "tokenizer": config}}}, Path("params.yaml"))
    main("corpora.c", Path("clean"), MODEL, Path("tokenizer.json"))
    return MODEL.read_bytes()


def test_the_model_is_that_of_the_parameters(workspace: Path, sentences: list[str]) -> None:
    run()
    tokenizer = Tokenizer.load(MODEL)
    assert tokenizer.vocab_size == 320
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(sentences)] == sentences


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("sample_lines", [250, 1000])
def test_the_same_text_gives_the_same_bytes(kind: str, sample_lines: int, workspace: Path) -> None:
    first = run(type=kind, vocab_size=300, sample_lines=sample_lines)
    facts = json.loads(Path("tokenizer.json").read_text())
    assert facts["lines"] == 600 and facts["share"] == round(facts["sampled"] / 600, 6) and facts["skipped"] == 0
    assert facts["sampled"] == 600 if sample_lines > 600 else abs(facts["sampled"] - 250) < 50  # 4 deviations of 12
    assert run(type=kind, vocab_size=300, sample_lines=sample_lines) == first


def test_both_languages_are_in_the_sample(workspace: Path) -> None:
    write_lines(workspace / "clean" / "train.en", ["ää öö"] * 300)
    write_lines(workspace / "clean" / "train.de", [f"{a}{b}" for a in "abcdefghijklmno" for b in "pqrstuvwxyzßéèà "[:15]])
    run(vocab_size=300, sample_lines=60)
    tokenizer = Tokenizer.load(MODEL)
    pieces = set("".join(tokenizer.pieces(range(260, tokenizer.vocab_size))))
    assert {"ä", "ö"} <= pieces and len(pieces & set("abcdefghijklmno")) > 10


def test_a_vocabulary_too_large_is_an_error_that_names_the_parameter_and_leaves_nothing(workspace: Path) -> None:
    with pytest.raises(
        UserError, match=r"^corpora\.c\.tokenizer\.vocab_size is 37000, but the training text yields only \d+ pieces: lower"
    ):
        run(vocab_size=37000)
    assert sorted(path.name for path in workspace.iterdir()) == ["clean", "params.yaml"]


def test_text_of_which_nothing_is_left_is_an_error(workspace: Path) -> None:
    for language in ("en", "de"):
        write_lines(workspace / "clean" / f"train.{language}", [])
    with pytest.raises(UserError, match=r"there is no training text"):
        run()
