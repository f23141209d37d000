"""The stage `translate` with a small random model: every source line has its line in every output."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import nmt.pieces
from nmt.errors import UserError
from nmt.lines import read_exact, write_lines
from nmt.translation import Translator
from stages.translate import main
from tests import copy_task

OUT = Path("translations")
SOURCES = {
    "valid": ["the house is old.", "", "das Haus …", "\u00a0\u200b", "x\u2028y \x85 z", "😀"],
    "news.2014": ["a cat sees the tree."],
    "empty": [],
}
FIELDS = {"text", "score", "log_prob", "tokens", "finished"}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    for name, lines in SOURCES.items():
        write_lines(tmp_path / "raw" / f"{name}.en", lines)
    return tmp_path


def run(model: Path, tokens: int = 12, **decode: Any) -> dict[str, bytes]:
    params = {
        "corpora": {"c": {"languages": {"src": "en", "tgt": "de"}, "test": ["news.2014", "empty"]}},
        "decode": {"beam_size": 3, "length_penalty": 0.6, "max_length_offset": 5, "stop": "exact", "precision": "float32", **decode},
        "hardware": {"device": "cpu", "threads": 1, "scratch": ".scratch", "decode_tokens": tokens},
    }
    YAML().dump(params, Path("params.yaml"))
    main("corpora.c", model, Path("raw"), OUT)
    return {path.name: path.read_bytes() for path in OUT.iterdir()}


def test_every_line_of_every_set_has_its_translation_and_its_list_of_the_best(workspace: Path, model_folder: Path) -> None:
    assert run(model_folder).keys() == {f"{name}.{kind}" for name in SOURCES for kind in ("txt", "nbest.jsonl")}
    for name, sources in SOURCES.items():
        best = list(read_exact(OUT / f"{name}.txt"))
        lists = [json.loads(line) for line in read_exact(OUT / f"{name}.nbest.jsonl")]
        assert len(best) == len(lists) == len(sources)
        for source, text, hypotheses in zip(sources, best, lists, strict=True):
            if source in ("", "\u00a0\u200b"):
                assert (text, hypotheses) == ("", [])
            else:
                assert len(hypotheses) == 3 and hypotheses[0]["text"] == text
                assert all(hypothesis.keys() == FIELDS for hypothesis in hypotheses)
                scores = [hypothesis["score"] for hypothesis in hypotheses]
                assert scores == sorted(scores, reverse=True)


def test_the_same_sources_give_the_same_bytes(workspace: Path, model_folder: Path) -> None:
    assert run(model_folder) == run(model_folder)
    assert sorted(path.name for path in workspace.iterdir()) == [".scratch", "params.yaml", "raw", "translations"]
    assert list(Path(".scratch/translate").iterdir()) == []


def test_a_path_that_is_no_model_is_an_error_and_leaves_nothing(workspace: Path) -> None:
    with pytest.raises(UserError, match=r"raw is not a model: model\.safetensors, tokenizer\.model, config\.json is missing"):
        run(Path("raw"))
    assert sorted(path.name for path in workspace.iterdir()) == ["params.yaml", "raw"]


def test_nothing_is_left_of_a_translation_that_was_cut_short(workspace: Path, model_folder: Path) -> None:
    (workspace / "raw" / "empty.en").unlink()
    with pytest.raises(FileNotFoundError):
        run(model_folder)
    assert sorted(path.name for path in workspace.iterdir()) == ["params.yaml", "raw"]


def test_what_was_translated_before_a_stop_is_not_translated_again(
    workspace: Path, model_folder: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at 70 % of 40 lines, in pieces of 4: the same command does the other 30 % and leaves the same bytes."""
    write_lines(workspace / "raw" / "news.2014.en", sentences[:40])
    whole = run(model_folder)
    monkeypatch.setattr(nmt.pieces, "PIECE_LINES", 4)
    translate, asked = Translator.translate, []

    def counted(self: Translator, lines: list[str], *arguments: Any) -> Any:
        if len(asked) == 28 + 6:  # of news.2014, behind the 6 of valid
            raise KeyboardInterrupt
        asked.extend(lines)
        return translate(self, lines, *arguments)

    monkeypatch.setattr(Translator, "translate", counted)
    with pytest.raises(KeyboardInterrupt):
        run(model_folder)
    before = len(asked)
    asked.append("")  # goes on from here without another stop
    assert run(model_folder) == whole
    assert (before, asked[before + 1 :]) == (34, sentences[28:40])


def test_other_settings_do_not_take_up_what_was_translated_before(
    workspace: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run(model_folder, beam_size=2)
    (workspace / "raw" / "empty.en").rename(workspace / "empty.en")
    with pytest.raises(FileNotFoundError):
        run(model_folder)
    (workspace / "empty.en").rename(workspace / "raw" / "empty.en")
    assert run(model_folder, beam_size=2) == other != run(model_folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("hardware.processes", marks=pytest.mark.essential), "torchrun"])
def test_several_processes_leave_the_bytes_of_one(way: str, workspace: Path, model_folder: Path, sentences: list[str]) -> None:
    write_lines(workspace / "raw" / "news.2014.en", sentences[:9] * 500)  # more than two pieces
    whole = run(model_folder, 20_000, beam_size=1, max_length_offset=0)
    shutil.rmtree(OUT)
    arguments = ["stages.translate", "corpora.c", str(model_folder), "raw", str(OUT)]
    if way == "torchrun":
        code, said = copy_task.run(workspace, "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", *arguments)
    else:
        params = YAML(typ="safe").load(Path("params.yaml"))
        params["hardware"]["processes"] = 2
        YAML().dump(params, Path("params.yaml"))
        code, said = copy_task.run(workspace, *arguments)
    assert code == 0, said
    assert {path.name: path.read_bytes() for path in OUT.iterdir()} == whole


def test_a_line_beyond_learned_positions_is_named_by_its_file(workspace: Path, learned_model_folder: Path) -> None:
    write_lines(workspace / "raw" / "news.2014.en", ["a", "zzz " * 1024])
    with pytest.raises(UserError, match=r"^raw/news\.2014\.en, line 2: \d+ tokens, but the model's learned positions reach only 1023"):
        run(learned_model_folder)
