"""COMET in another interpreter: its scores come back line by line, and whatever goes wrong there is one sentence here."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt import comet_worker
from nmt.comet import PYTHON, CometConfig, check, comet
from nmt.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
LINES = (["a", "bb", ""], ["é\u2028", "“", ""], ["abc", "", "x"])  # sources, hypotheses, references
SCORES = [32.1, 1.2, 10.0]  # (1 + 20 + 300) / 10, …: of the stand-in, in hundredths
REAL = os.environ.get(PYTHON)


@pytest.fixture(autouse=True)
def interpreter(comet_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, str(comet_python))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'nmt'}")  # what this environment has is not to be seen over there


def config(model: str | Path, precision: str = "float32") -> CometConfig:
    return CometConfig.model_validate({"model": str(model), "precision": precision})


def checkpoint(folder: Path, content: str = "") -> Path:
    (folder / "model.ckpt").write_text(content)
    return folder / "model.ckpt"


def message(model: str | Path, device: str = "auto") -> str:
    """What is said when it goes wrong, in one line."""
    with pytest.raises(UserError) as raised:
        comet({"valid": LINES, "test": LINES}, config(model), device)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_every_line_has_its_score_times_100_and_every_set_its_own() -> None:
    many = tuple(["x" * (number % 9) for number in range(40)] for _ in range(3))
    found = comet({"test": LINES, "many": many, "one": (["a"], ["b"], ["c"])}, config("Unbabel/known"), "auto")  # type: ignore[dict-item]
    assert found["test"][0] == pytest.approx(SCORES)
    assert found["many"][0] == pytest.approx([11.1 * (number % 9) for number in range(40)])
    assert found["one"][0] == pytest.approx([11.1])


def test_the_signature_tells_all_that_decides(tmp_path: Path) -> None:
    rest = f"sha256:{hashlib.sha256(b'').hexdigest()}|precision:float32|batch:16|version:9.9"
    assert comet({"test": LINES}, config("Unbabel/known"), "cpu")["test"][1] == f"model:Unbabel/known|{rest}"
    assert comet({"test": LINES}, config(checkpoint(tmp_path)), "cpu")["test"][1] == rest  # a path is no part of a result
    scores, signature = comet({"test": LINES}, config(checkpoint(tmp_path, "other"), "float16"), "cpu")["test"]
    assert scores == pytest.approx([2 * score for score in SCORES])  # so the stand-in was halved
    assert signature == f"sha256:{hashlib.sha256(b'other').hexdigest()}|precision:float16|batch:16|version:9.9"


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("broken", r"COMET: the model \S+/model.ckpt cannot be loaded \(RuntimeError: hparams.yaml is missing\): put that right"),
        ("raise", r"COMET: it failed while it scored \(RuntimeError: no room for that\): put that right"),
        ("kill", "COMET was ended by SIGKILL while it scored valid, mostly for want of memory"),
        ("exit", "COMET ended with exit code 3 while it scored valid"),
        ("short", "COMET gave 2 scores for the 3 lines of valid"),
        ("nan", "COMET gave line 2 of valid the score nan: take precision float32"),
    ],
)
def test_what_goes_wrong_over_there_is_one_sentence(tmp_path: Path, trouble: str, told: str) -> None:
    assert re.match(told, message(checkpoint(tmp_path, trouble)))


def test_a_model_that_is_nowhere_is_named_with_the_first_reason(tmp_path: Path) -> None:
    told = message("Unbabel/unknown")
    assert told.startswith("COMET: there is no model Unbabel/unknown (KeyError: ")
    assert 'not supported by COMET.", after OSError: the hub cannot be reached): ' in told
    assert message(tmp_path / "no.ckpt").startswith(f"COMET's model {tmp_path / 'no.ckpt'} is no file: ")
    assert message(tmp_path).endswith(f"is a folder: name the checkpoint in it, mostly {tmp_path / 'checkpoints/model.ckpt'}")


def test_a_gpu_that_is_not_there_is_told() -> None:
    assert "the device is to be cuda, but its PyTorch sees no GPU" in message("Unbabel/known", "cuda")


def test_an_interpreter_that_cannot_run_comet_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "": "COMET runs in an interpreter of its own, and COMET_PYTHON names none: make one (python3 -m venv ~/comet && ",
        str(tmp_path / "none"): f"COMET_PYTHON is {tmp_path / 'none'}, which cannot be run (No such file or directory)",
        str(tmp_path): f"COMET_PYTHON is {tmp_path}, which cannot be run (Permission denied)",
        "/bin/false": "COMET_PYTHON is /bin/false, which is no working Python 3",
        sys.executable: f"unbabel-comet is not installed for {sys.executable}, which COMET_PYTHON names: {sys.executable} -m pip install",
    }
    for python, expected in told.items():
        monkeypatch.setenv(PYTHON, python)
        assert message("Unbabel/known").startswith(expected)
        with pytest.raises(UserError):
            check(config("Unbabel/known"))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, f"wait {tmp_path / 'pid'}")
    call = f"comet({{'test': (['a'], ['b'], ['c'])}}, CometConfig(model={str(model)!r}, precision='float32'), 'cpu')"
    parent = subprocess.Popen([sys.executable, "-c", f"from nmt.comet import CometConfig, comet; {call}"], stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        child = Path("/proc") / (tmp_path / "pid").read_text()
        assert "comet_worker" in (child / "cmdline").read_text()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _wait(lambda: not child.exists() or (child / "cmdline").read_text() == "")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason=f"{PYTHON} names no interpreter with unbabel-comet")
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_scores_are_those_of_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """A model of random weights, in float16 as the package's own command `comet-score` has it, in float32 as its library has it."""
    assert REAL
    monkeypatch.setenv(PYTHON, REAL)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)
    subprocess.run([REAL, "-W", "ignore", ROOT / "tests" / "tiny_comet.py", "tiny"], check=True)
    model = "tiny/checkpoints/model.ckpt"
    words = "das Haus ist alt eine Katze sieht den Baum nicht verbunden €".split()
    places = [[(start + number * step) % 13 % 12 for number in range(1 + start % 7)] for step in (1, 2, 3) for start in range(50)]
    lines = [" ".join(words[place] for place in line) for line in places]
    sides = {"src": lines[:50], "mt": ["", *lines[51:100]], "ref": lines[100:]}
    if precision == "float16":
        for name, side in sides.items():
            Path(name).write_text("".join(f"{line}\n" for line in side))
        command = [Path(REAL).with_name("comet-score"), "-s", "src", "-t", "mt", "-r", "ref", "--gpus", "0", "--model", model]
    else:
        Path("samples").write_text(json.dumps([dict(zip(sides, line, strict=True)) for line in zip(*sides.values(), strict=True)]))
        call = f"comet.load_from_checkpoint({model!r}).predict(json.load(open('samples')), gpus=0, progress_bar=False).scores"
        command = [REAL, "-c", f"import comet, json; print(*(f'score: {{score:.9f}}' for score in {call}), sep='\\n')"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    expected = [100 * float(line.rpartition("score: ")[2]) for line in printed if "score: " in line][:50]
    found, signature = comet({"test": (sides["src"], sides["mt"], sides["ref"])}, config(model, precision), "cpu")["test"]
    assert found == pytest.approx(expected, abs=0.0051 if precision == "float16" else 1e-6)
    assert len(set(found)) > 20  # the model tells lines apart
    assert f"precision:{precision}|batch:{comet_worker.BATCH}|" in signature


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
