"""The console script as a real child process: bytes in, bytes out, exit codes and what is said."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nmt.arriving
import nmt.cli
import nmt.pieces
from nmt.bundle import load_bundle
from nmt.cli import app
from nmt.errors import UserError
from nmt.search import MOST_ALPHA, MOST_BEAMS, DecodeConfig
from nmt.translation import Translator

ROOT = Path(__file__).resolve().parents[2]
LINES = ["the house is old.", "", "\u00a0\u200b", "das Haus …", "x\u2028y \x85", "😀 дом"]
Result = subprocess.CompletedProcess[bytes]


def translate(*arguments: str | Path, text: bytes = b"") -> Result:
    """`nmt translate ARGUMENTS < text` where nothing says that a terminal could show more than ASCII."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "nmt.cli", "translate", *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, env=environment, timeout=120)


@pytest.fixture(scope="module")
def results(model_folder: Path) -> dict[str, Result]:
    """All children that need nothing but their arguments, run side by side since each takes seconds to import torch."""
    text = "\r\n".join(LINES).encode()
    calls: dict[str, tuple[tuple[str | Path, ...], bytes]] = {
        "lines": ((model_folder,), b"\xef\xbb\xbf" + text),
        "NUL": ((model_folder,), b"the house\na\0b\n"),
        "no model": ((model_folder.parent,), text),
        "bad option": ((model_folder, "--beam", "0"), text),
    }
    with ThreadPoolExecutor(max_workers=2) as pool:
        children = {name: pool.submit(translate, *arguments, text=text) for name, (arguments, text) in calls.items()}
        return {name: child.result() for name, child in children.items()}


def expected(model_folder: Path, beam: int, alpha: float) -> bytes:
    config = DecodeConfig(beam_size=beam, length_penalty=alpha, max_length_offset=50, stop="exact", precision="float32")
    found = Translator(load_bundle(model_folder), config, torch.device("cpu"), 1000).translate(LINES)
    return "".join((result[0].text if result else "") + "\n" for result in found).encode()


def test_every_line_of_standard_input_has_its_translation_in_utf_8(results: dict[str, Result], model_folder: Path) -> None:
    result = results["lines"]
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == expected(model_folder, 4, 0.6)
    assert result.stdout.count(b"\n") == len(LINES) and result.stdout.split(b"\n")[1:3] == [b"", b""]
    assert any(byte > 127 for byte in result.stdout)  # or this would say nothing about the encoding


@pytest.mark.parametrize("text", ["", "\n", " \n\u00a0", "a", "a\n", "a\n\nb\n"])
def test_as_many_lines_come_out_as_go_in_with_and_without_a_last_newline(text: str, model_folder: Path) -> None:
    result = CliRunner().invoke(app, ["translate", str(model_folder)], input=text)
    assert result.exit_code == 0
    lines = text.removesuffix("\n").split("\n") if text else []
    assert [bool(line) for line in result.stdout.split("\n")[:-1]] == [bool(line.strip()) for line in lines]


def test_options_reach_the_search(model_folder: Path) -> None:
    arguments = ["translate", str(model_folder), "--beam", "1", "--length-penalty", "0"]
    result = CliRunner().invoke(app, arguments, input="\n".join(LINES))
    assert result.stdout_bytes == expected(model_folder, 1, 0.0) != expected(model_folder, 4, 0.6)


def test_nbest_numbers_the_lines_and_scores_stand_before_the_text(model_folder: Path) -> None:
    plain = CliRunner().invoke(app, ["translate", str(model_folder)], input="\n".join(LINES)).stdout.split("\n")
    arguments = ["translate", str(model_folder), "--nbest", "3", "--scores"]
    rows = [row.split("\t", 2) for row in CliRunner().invoke(app, arguments, input="\n".join(LINES)).stdout.split("\n")[:-1]]
    assert [int(number) for number, _, _ in rows] == [1, 1, 1, 2, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]
    assert [(score, text) for number, score, text in rows if number in "23"] == [("", "")] * 2
    for number in (1, 4, 5, 6):
        found = [(float(score), text) for of, score, text in rows if int(of) == number]
        assert found[0][1] == plain[number - 1] and [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
    scored = CliRunner().invoke(app, ["translate", str(model_folder), "--scores"], input="\n".join(LINES)).stdout.split("\n")[:-1]
    assert [row.split("\t", 1)[1] for row in scored] == plain[:-1]


def test_more_translations_than_beams_are_refused(model_folder: Path) -> None:
    result = CliRunner().invoke(app, ["translate", str(model_folder), "--nbest", "5"], input="a")
    assert isinstance(result.exception, UserError) and str(result.exception).startswith("--nbest 5 is more than the beam holds")


@pytest.mark.parametrize(
    ("option", "value", "most"),
    [("--beam", "5000", 256), ("--nbest", "5000", 256), *(("--length-penalty", value, 10) for value in ("inf", "1e9", "nan"))],
)
def test_numbers_that_would_take_for_ever_or_are_none_are_refused(option: str, value: str, most: int, model_folder: Path) -> None:
    result = CliRunner().invoke(app, ["translate", str(model_folder), option, value], input="a")
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())  # without the box around it
    assert result.exit_code == 2 and f"Invalid value for '{option}'" in told and told.endswith(f" {most}")


def test_the_options_are_bounded_as_the_parameters_are() -> None:
    assert (nmt.cli.MOST_BEAMS, nmt.cli.MOST_ALPHA) == (MOST_BEAMS, MOST_ALPHA)


def test_a_prefix_of_hundreds_of_tokens_is_refused(model_folder: Path) -> None:
    result = CliRunner().invoke(app, ["translate", str(model_folder), "--prefix", "Haus " * 2000], input="a")
    assert isinstance(result.exception, UserError)
    assert re.fullmatch(r"the prefix: [2-9],\d{3} tokens, but a prefix may have 256: shorten it", str(result.exception))


def test_a_prefix_begins_every_translation_and_a_seed_draws_them(model_folder: Path) -> None:
    arguments = ["translate", str(model_folder), str(model_folder)]
    found = CliRunner().invoke(app, [*arguments, "--prefix", "das Haus"], input="a\n\nb").stdout.split("\n")
    assert found[0].startswith("das Haus") and found[1] == "" and found[2].startswith("das Haus")
    draws = [CliRunner().invoke(app, [*arguments, "--sample", seed], input="a\n\nb").stdout for seed in ("1", "1", "2")]
    assert draws[0] == draws[1] != draws[2] and draws[0].count("\n") == 3


def test_a_line_is_translated_while_the_next_is_not_written_yet(model_folder: Path) -> None:
    command = [sys.executable, "-m", "nmt.cli", "translate", str(model_folder), "--beam", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdin and child.stdout
        for _ in range(2):
            child.stdin.write(b"the house\n")
            child.stdin.flush()
            assert child.stdout.readline().endswith(b"\n")  # or this waits for ever
        child.stdin.close()
        assert child.wait(60) == 0


def test_a_file_is_translated_as_a_stream_is_and_goes_on_after_a_stop(
    model_folder: Path, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.pieces, "PIECE_LINES", 4)
    text = "\n".join([*sentences[:17], "", ""])
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(text)
    arguments = ["translate", str(model_folder), "--nbest", "2"]
    expected = CliRunner().invoke(app, arguments, input=text).stdout_bytes
    translate, asked = Translator.translate, []

    def counted(self: Translator, lines: list[str], *rest: object) -> object:
        if len(asked) == 3:
            asked.append(0)
            raise KeyboardInterrupt
        asked.append(len(lines))
        return translate(self, lines, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Translator, "translate", counted)
    arguments += ["--input", str(source), "--output", str(output)]
    assert CliRunner().invoke(app, arguments).exit_code != 0 and not output.exists()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert output.read_bytes() == expected and asked == [4, 4, 4, 0, 4, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


CHILD = """
import sys, time
import nmt.pieces
from nmt.cli import main
from nmt.translation import Translator

nmt.pieces.PIECE_LINES = 4
translate = Translator.translate


def counted(self, lines, *rest):
    print(f"asked {len(lines)}", file=sys.stderr, flush=True)
    time.sleep(0.1)
    return translate(self, lines, *rest)


Translator.translate = counted
main()
"""


@pytest.mark.slow
def test_after_a_kill_at_seven_tenths_only_the_rest_is_translated_and_the_bytes_are_the_same(
    model_folder: Path, sentences: list[str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join([*sentences[:37], "", "", sentences[37]]) + "\n")
    arguments = ["translate", str(model_folder), "--beam", "1"]
    expected = CliRunner().invoke(app, arguments, input=source.read_text()).stdout_bytes
    command = [sys.executable, "-c", CHILD, *arguments, "--input", str(source), "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as child:
        while len(done := [path for path in tmp_path.glob("out.pieces/*/piece.*") if path.suffix != ".part"]) < 7:
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
    assert 7 <= len(done) < 10 and not output.exists()
    done = [path for path in tmp_path.glob("out.pieces/*/piece.*") if path.suffix != ".part"]
    again = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert again.returncode == 0
    assert again.stderr.count(b"asked 4\n") == again.stderr.count(b"asked") == 10 - len(done)
    assert output.read_bytes() == expected and expected.count(b"\n") == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_pipe_is_no_input_that_could_be_read_again(model_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = CliRunner().invoke(app, ["translate", str(model_folder), "--input", str(tmp_path / "pipe"), "--output", str(tmp_path / "out")])
    assert isinstance(found.exception, UserError) and "is no file that can be read more than once" in str(found.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctrl_c_while_it_starts_ends_it_at_once_and_in_silence(model_folder: Path) -> None:
    """Also in the middle of the imports, of which some go on without what was interrupted; it would wait for its input without end."""
    command = [sys.executable, "-c", "from nmt.cli import main\nprint('begun', flush=True)\nmain()", "translate", str(model_folder)]
    for twentieths in range(2, 16):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        time.sleep(twentieths / 20)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (130, -signal.SIGINT)
        assert process.communicate()[1] == b""


def test_nothing_but_another_file_is_written_over(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("the tree\n")
    for output, sentence in (
        (tmp_path, f"{tmp_path} is no file that could be replaced: name another --output"),
        (Path("/dev/null"), "/dev/null is no file that could be replaced: name another --output"),
        (tmp_path / ".." / tmp_path.name / "in", "is the --input itself: name another file"),
        (Path("/proc/x"), "--output /proc/x cannot be written, nor a folder beside it (No such file or directory): name another file"),
        (source / "out", "cannot be written, nor a folder beside it (Not a directory): name another file"),
    ):
        found = CliRunner().invoke(app, ["translate", str(model_folder), "--input", str(source), "--output", str(output)])
        assert isinstance(found.exception, UserError) and sentence in str(found.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["in"] and source.read_text() == "the tree\n"


def test_a_prefix_that_is_no_text_is_refused(model_folder: Path) -> None:
    found = CliRunner().invoke(app, ["translate", str(model_folder), "--prefix", "\udcff"], input="x")
    assert isinstance(found.exception, UserError) and str(found.exception) == "--prefix is not UTF-8 text: give plain words"


def test_an_input_that_is_not_there_is_said_and_nothing_is_left(model_folder: Path, tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        result = CliRunner().invoke(app, ["translate", str(model_folder), "--input", str(path), "--output", str(tmp_path / "out")])
        assert isinstance(result.exception, UserError) and str(result.exception) == f"--input {path} cannot be read: {reason}"
    assert list(tmp_path.iterdir()) == []


def test_input_and_output_go_together(model_folder: Path) -> None:
    result = CliRunner().invoke(app, ["translate", str(model_folder), "--input", "x"])
    assert isinstance(result.exception, UserError) and str(result.exception).startswith("--input and --output go together")


def test_lines_are_numbered_through_whatever_is_translated_at_once(learned_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.arriving, "FIRST_LINES", 2)
    monkeypatch.setattr(nmt.arriving, "MOST_LINES", 2)
    for before in ("a\n\n\n\n", "a\n\n\n\nb\n"):  # it is the first of what is translated at once, or another
        result = CliRunner().invoke(app, ["translate", str(learned_model_folder)], input=before + "zzz " * 1024 + "\nc\n")
        number = before.count("\n") + 1
        assert isinstance(result.exception, UserError) and str(result.exception).startswith(f"standard input, line {number}: ")
        assert result.stdout.count("\n") == number - 1  # what came before is not lost


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NUL", "error: standard input, line 2, byte 11: a NUL byte, so this is not plain UTF-8 text; convert or repair the file\n"),
        (
            "no model",
            "is not a model: model.safetensors, tokenizer.model, config.json is missing; name the folder that the stage `average` wrote\n",
        ),
    ],
)
def test_what_the_user_can_put_right_is_one_sentence_and_exit_code_2(name: str, sentence: str, results: dict[str, Result]) -> None:
    result = results[name]
    said = result.stderr.decode()
    assert result.returncode == 2 and result.stdout.count(b"\n") == (1 if name == "NUL" else 0)  # what came before is not lost
    assert said.startswith("error: ") and said.endswith(sentence) and said.count("\n") == 1


def test_an_impossible_option_is_refused(results: dict[str, Result]) -> None:
    result = results["bad option"]
    assert result.returncode == 2 and b"--beam" in result.stderr and b"Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("streams", "sentence"),
    [
        ("< in > /dev/full", "error: the translations could not be written: No space left on device\n"),
        ("<&-", "error: there is no standard input: give it the text, nmt translate MODEL < text\n"),
    ],
)
def test_streams_that_cannot_be_used_are_one_sentence(streams: str, sentence: str, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"the house\n")
    command = f"'{sys.executable}' -m nmt.cli translate '{model_folder}' --beam 1 {streams}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, env=environment, timeout=120)
    assert (result.returncode, result.stderr.decode()) == (2, sentence)


def test_a_reader_that_has_seen_enough_ends_it_in_silence(model_folder: Path, tmp_path: Path) -> None:
    """`nmt translate MODEL < in | head -1`, with more output than the pipe holds."""
    (tmp_path / "in").write_bytes(b"the house is old and the red light sees a tree.\n" * 4000)
    command = f"'{sys.executable}' -m nmt.cli translate '{model_folder}' --beam 1 < in | head -1; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, env=environment, timeout=120)
    assert result.stdout.count(b"\n") == 1
    assert (result.returncode, result.stderr) == (128 + 13, b"")  # SIGPIPE, as of any other filter


def score(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> tuple[int, str]:
    """Exit code and output of `nmt score` over these lines."""
    for name, lines in (("hyp.de", hypotheses), ("ref.de", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    found = CliRunner().invoke(app, ["score", str(folder / "hyp.de"), str(folder / "ref.de"), "--language", "de", *options])
    if isinstance(found.exception, UserError):
        return 2, str(found.exception)
    return found.exit_code, found.output


def test_files_are_scored_with_signatures(tmp_path: Path) -> None:
    code, output = score(tmp_path, ["the cat sat on the mat"], ["the cat sat on a mat"])
    assert code == 0 and "hyp.de, 1 lines" in output
    assert "53.73" in output  # (5/6 * 3/5 * 2/4 * 1/3) ** 0.25
    assert "|tok:13a|smooth:exp|" in output and "|tok:moses-de-sacremoses" in output


def test_comet_is_scored_too_where_asked_for(tmp_path: Path, comet_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_PYTHON", str(comet_python))
    (tmp_path / "src.en").write_text("abc\n")
    code, output = score(tmp_path, ["de"], ["f"], "--comet", "Unbabel/known", "--source", str(tmp_path / "src.en"))
    assert code == 0 and "12.30 ± 0.00" in output and "|model:Unbabel/known|" in output  # (3 + 20 + 100) / 10
    assert score(tmp_path, ["de"], ["f"], "--comet", "Unbabel/known") == (2, "COMET reads the source too: name it, --source FILE")


def test_files_that_cannot_be_scored_are_named_before_any_score(tmp_path: Path) -> None:
    code, output = score(tmp_path, ["eins", "zwei"], ["eins"])
    assert code == 2 and "hyp.de has 2 lines" in output and "ref.de has 1 lines" in output
    code, output = score(tmp_path, ["Er sagte &quot;ja&quot;"], ["Er sagte ja"])
    assert code == 2 and "&quot;" in output
    text = [f"Zeile {number * number} von {number} steht hier" for number in range(100)]
    code, output = score(tmp_path, text, text[1:] + text[:1])
    assert code == 2 and "shifted against each other" in output


def test_translations_that_are_none_are_told(tmp_path: Path) -> None:
    """With the source beside them, hypotheses in its language do not pass; without it, or with few lines, nothing is claimed of it."""
    sources = [f"the house number {n} stands beside the old church and its garden" for n in range(250)]
    references = [f"das Haus Nummer {n} steht neben der alten Kirche und ihrem Garten" for n in range(250)]
    (tmp_path / "src.en").write_text("".join(f"{line}\n" for line in sources))
    (tmp_path / "few.en").write_text("".join(f"{line}\n" for line in sources[:199]))
    _, told = score(tmp_path, sources, references, "--source", str(tmp_path / "src.en"))
    assert "warning: " in told and "source" in told.partition("warning: ")[2].splitlines()[0]
    assert "was not checked" not in told
    _, few = score(tmp_path, references[:199], references[:199], "--source", str(tmp_path / "few.en"))
    assert "note: whether the texts are in the right language was not checked: that takes 200 lines or more\n" in few
    _, plain = score(tmp_path, references, references)
    assert "note: whether the texts are in the right language was not checked: that takes the lines that were translated, --source" in plain
    assert "equal to source" in plain and "unknown" in plain.partition("equal to source")[2].splitlines()[0]
