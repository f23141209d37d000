"""`nmt export`: what is written is proven, what cannot be is refused by name, and nothing else is left or replaced."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nmt.export
import nmt.export_ctranslate2
from nmt.cli import app
from nmt.errors import UserError
from nmt.export import PROOF, Format, Precision, check, export_folder, valid_set
from nmt.model import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {"layers": 1, "d_model": 8, "d_ff": 16, "heads": 2, "d_k": 4, "d_v": 4, "dropout": 0.1, "positions": "sinusoidal"}
FORMATS: tuple[Format, ...] = ("ctranslate2", "transformers")


@pytest.fixture
def project(taught_model_folder: Path, sentences: list[str], tmp_path: Path) -> Path:
    """A project as the pipeline leaves it: runs/toy/small/averaged and data/toy/raw/valid.*."""
    shutil.copytree(taught_model_folder.parents[2], tmp_path / "project" / "runs")
    raw = tmp_path / "project" / "data" / "toy" / "raw"
    raw.mkdir(parents=True)
    for language in ("en", "de"):
        (raw / f"valid.{language}").write_text("\n".join([*sentences[:60], "", *sentences[60:99]]) + "\n", encoding="utf-8")
    return tmp_path / "project"


def nmt_export(model: Path, *arguments: str | Path) -> tuple[int, str, BaseException | None]:
    """Exit code, standard output and what was raised by `nmt export MODEL ARGUMENTS`."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(app, ["export", str(model), *map(str, arguments)])
    finally:
        signal.signal(signal.SIGTERM, before)
    return result.exit_code, result.stdout, result.exception


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.slow
@pytest.mark.essential
def test_the_export_stands_whole_with_its_proof_on_the_valid_set(project: Path) -> None:
    out = project / "out" / "ct2"
    code, told, error = nmt_export(project / "runs/toy/small/averaged", "--to", "ctranslate2", out)
    assert code == 0, error
    assert files(out) == ["config.json", "model.bin", PROOF, "shared_vocabulary.json", "tokenizer.model"]
    assert files(project / "out") == ["ct2", *(f"ct2/{name}" for name in files(out))]
    proof = json.loads((out / PROOF).read_text(encoding="utf-8"))
    assert (proof["proven"], proof["precision"], proof["text"]["source"], proof["text"]["lines"]) == (True, "float32", "valid.en", 100)
    assert (proof["compared"], proof["tokenized_otherwise"]) == (99, 0)
    assert proof["identical"] + proof["cut"] == 99 and proof["cut"] < 20
    assert proof["largest_score_difference"] < 1e-4
    assert [one["why"] for one in proof["differing"]].count("cut") == len(proof["differing"])
    for side in ("nmt", "engine"):
        assert "tok:13a" in proof["bleu"][side]["signature"] and proof["bleu"][side]["signature"] in told
    assert f"{proof['identical']:,} (100.00 %)" in told and proof["engine"] in told


@pytest.mark.slow
def test_quantized_weights_are_proven_by_bleu_of_enough_lines_and_replace_an_earlier_export(project: Path, sentences: list[str]) -> None:
    out, model = project / "out", project / "runs/toy/small/averaged"
    _, _, error = nmt_export(model, "--to", "ctranslate2", "--precision", "int8", out)
    assert isinstance(error, UserError) and not out.exists()
    assert str(error).startswith("valid.en has 99 lines to translate, too few to tell what int8 costs in BLEU: name a text of 200 or more")
    for language in ("en", "de"):
        (project / "data/toy/raw" / f"valid.{language}").write_text("\n".join(sentences[:200]) + "\n", encoding="utf-8")
    for precision in ("float16", "int8"):
        code, _, error = nmt_export(model, "--to", "ctranslate2", "--precision", precision, out)
        assert code == 0, error
        proof = json.loads((out / PROOF).read_text(encoding="utf-8"))
        assert (proof["precision"], proof["arithmetic"].split("_")[0] == "int8") == (precision, precision == "int8")


@pytest.mark.slow
def test_a_wrong_weight_fails_with_the_lines_and_leaves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys of each head the wrong way round, as a converter would have them that expects another order of rows."""
    right = nmt.export_ctranslate2.projections

    def wrong(joined: torch.nn.Linear, heads: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = right(joined, heads, count)
        return [found[0], found[2], found[1]] if count == 3 else found

    monkeypatch.setattr(nmt.export_ctranslate2, "projections", wrong)
    code, told, error = nmt_export(project / "runs/toy/small/averaged", "--to", "ctranslate2", project / "out" / "ct2")
    assert code == 1 and isinstance(error, UserError)
    assert "does not say what" in str(error) and "% of the lines are identical" in str(error) and "a score differs by" in str(error)
    assert "lines that differ" in told and "unexplained" in told
    assert files(project / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "number", "code"), [("transformers", signal.SIGTERM, 128 + signal.SIGTERM), ("ctranslate2", signal.SIGINT, 130)]
)
def test_a_stopped_export_leaves_nothing_and_says_what_next(to: Format, number: signal.Signals, code: int, project: Path) -> None:
    out = project / "out" / "hf"
    command = [sys.executable, "-m", "nmt.cli", "export", "runs/toy/small/averaged", "--to", to, str(out)]
    process = subprocess.Popen(command, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    while not (project / "out" / "hf.part" / "config.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == code
    assert files(project / "out") == []
    if number == signal.SIGINT:
        assert said.splitlines()[-1] == f"stopped: nothing was written to {out}; the same command begins anew"


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
def test_every_file_has_the_mode_that_the_umask_says(to: Format, project: Path) -> None:
    before = os.umask(0o027)
    try:
        code, _, error = nmt_export(project / "runs/toy/small/averaged", "--to", to, project / "out")
    finally:
        os.umask(before)
    assert code == 0, error
    assert {path.stat().st_mode & 0o777 for path in (project / "out").rglob("*")} == {0o640}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d_k": 2}, ("model.d_k is 2", "model.d_model / model.heads", "8 / 2")),
        ({"d_v": 8}, ("model.d_v is 8", "model.d_model / model.heads")),
        ({"heads": 3, "d_k": 2, "d_v": 2}, ("model.d_k is 2", "8 / 3")),
        ({"positions": "learned"}, ("model.positions is learned", "sinusoidal")),
    ],
)
def test_what_a_format_cannot_hold_is_named(to: Format, change: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        check(ModelConfig.model_validate({**SHAPE, **change}), to, "float32")
    assert all(word in str(error.value) for word in (*words, to))


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_transformers_takes_float32(precision: Precision) -> None:
    check(ModelConfig.model_validate(SHAPE), "ctranslate2", precision)
    with pytest.raises(UserError, match=f"--precision {precision} is for ctranslate2"):
        check(ModelConfig.model_validate(SHAPE), "transformers", precision)


@pytest.mark.parametrize("arguments", [["--source", "valid.en"], ["--reference", "valid.de"]])
def test_a_source_needs_its_reference(arguments: list[str], model_folder: Path, tmp_path: Path) -> None:
    _, _, error = nmt_export(model_folder, "--to", "ctranslate2", tmp_path / "out", *arguments)
    assert isinstance(error, UserError) and "--source and --reference go together" in str(error)


@pytest.mark.parametrize(
    ("sources", "references", "sentence"),
    [("a\nb\n", "a\n", "has 2 lines"), ("\n \n", "a\nb\n", "holds no text"), ("", "", "holds no text")],
)
def test_texts_that_prove_nothing_are_refused(sources: str, references: str, sentence: str, model_folder: Path, tmp_path: Path) -> None:
    for name, content in (("s", sources), ("r", references)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    _, _, error = nmt_export(
        model_folder, "--to", "ctranslate2", tmp_path / "out", "--source", tmp_path / "s", "--reference", tmp_path / "r"
    )
    assert isinstance(error, UserError) and sentence in str(error), error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "s"]


def test_a_model_without_a_valid_set_asks_for_a_text(model_folder: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    languages = {"languages": {"src": "en", "tgt": "de"}}
    raw = project / "data" / "toy" / "raw"
    monkeypatch.chdir(project / "runs" / "toy")
    assert valid_set(Path("small/averaged"), languages) == (raw / "valid.en", raw / "valid.de")
    for model, facts in ((model_folder, languages), (project / "runs/toy/small/averaged", {}), (Path("/"), languages)):
        with pytest.raises(UserError, match="--source and --reference"):
            valid_set(model, facts)


def test_a_folder_that_holds_something_else_is_never_replaced(tmp_path: Path) -> None:
    model = tmp_path / "averaged"
    model.mkdir()
    (model / "config.json").touch()
    (tmp_path / "file").touch()
    for name, words in (
        ("averaged", "the model's own folder"),
        ("averaged/ct2", "the model's own folder"),
        ("file", "is a file"),
        (".", "holds"),
    ):
        with pytest.raises(UserError, match=words), export_folder(tmp_path / name, model):
            raise AssertionError
    assert files(tmp_path) == ["averaged", "averaged/config.json", "file"]


def test_an_empty_folder_and_an_earlier_export_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for content in (["a"], ["b"]):
        with export_folder(out, tmp_path / "averaged") as building:
            for name in (*content, PROOF):
                (building / name).touch()
        assert files(out) == [*content, PROOF]
    with pytest.raises(ValueError), export_folder(out, tmp_path / "averaged") as building:
        (building / "c").touch()
        raise ValueError
    assert files(tmp_path) == ["out", "out/b", f"out/{PROOF}"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="could not be written to .*file/out"),
        export_folder(tmp_path / "file" / "out", tmp_path / "averaged"),
    ):
        raise AssertionError


def test_a_missing_engine_is_named(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "nmt.export_ctranslate2")
    monkeypatch.delattr("nmt.export_ctranslate2", raising=False)
    _, _, error = nmt_export(model_folder, "--to", "ctranslate2", tmp_path / "out")
    assert isinstance(error, UserError) and "ctranslate2" in str(error) and "pip install -e '.[export]'" in str(error)
