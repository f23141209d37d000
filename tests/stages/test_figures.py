"""The command that writes the figures."""

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from nmt.tokenizer import Tokenizer
from stages import figures
from tests.copy_task import HARDWARE

FORMULAS = {"positions", "wavelengths", "bases", "rate-width", "rate-warmup", "saturation"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Path:
    """A folder with params.yaml and a model."""
    monkeypatch.chdir(tmp_path)
    decode = {"beam_size": 2, "length_penalty": 0.6, "max_length_offset": 5, "stop": "exact", "precision": "float32"}
    YAML(typ="safe", pure=True).dump({"hardware": {**HARDWARE, "threads": "auto"}, "decode": decode}, Path("params.yaml"))
    shutil.copytree(model_folder, "runs/toy/small/averaged")
    return tmp_path


def test_without_a_model_it_draws_the_formulas(project: Path) -> None:
    figures.main()
    assert {path.stem for path in Path("figures").iterdir()} == FORMULAS
    for path in Path("figures").iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_with_a_sentence_it_draws_where_each_head_looks(project: Path) -> None:
    figures.main("toy", "small", Path("drawn"), sentence="the old house", target="das Haus")
    names = {path.stem for path in Path("drawn").iterdir()}
    assert names == FORMULAS | {f"attention-{kind}-1" for kind in ("encoder", "decoder", "cross")}
    text = set(ElementTree.parse("drawn/attention-cross-1.svg").getroot().itertext())
    tokenizer = Tokenizer.load(Path("runs/toy/small/averaged/tokenizer.model"))
    pieces = {piece.strip("▁") or "␣" for line in ("the old house", "das Haus") for piece in tokenizer.pieces(tokenizer.encode([line])[0])}
    assert {"begin", "end", "head 1", "head 2"} <= text and pieces <= text


def test_what_is_missing_is_said(project: Path) -> None:
    with pytest.raises(UserError, match="name corpus and variant"):
        figures.main(sentence="the old house")
    with pytest.raises(UserError, match="runs/toy/big/averaged is not a folder"):
        figures.main("toy", "big", sentence="the old house")
    with pytest.raises(UserError, match="runs/toy/big/averaged is not a folder"):
        figures.main("toy", "big")
    assert not Path("figures").exists()
    with pytest.raises(UserError, match="--sentence is blank"):
        figures.main("toy", "small", sentence="  ")
    with pytest.raises(UserError, match="holds no checkpoints"):
        figures.main("toy", "small", averaging=True)
