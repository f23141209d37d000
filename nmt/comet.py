"""COMET (Rei et al. 2020): how good people would find each translation, as a neural network guesses. Extra, and off by default.

Its package needs a NumPy below 2, so it runs in an interpreter of its own, which the environment variable COMET_PYTHON names: a fact of
the machine and no part of a result. `nmt.comet_worker` is the other side.

A score is COMET's times 100, so that 85.34 is what `comet-score` prints as 0.8534. It means nothing without the model, and moves with
precision and version (Zouhar et al. 2024), so the signature has them all:

    model:Unbabel/wmt22-comet-da|sha256:…|precision:float32|batch:16|version:2.2.7         of a checkpoint's own path, no model
"""

import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmt import comet_worker
from nmt.config import Config
from nmt.errors import UserError
from nmt.progress import Progress
from nmt.scoring import Scored

PYTHON = "COMET_PYTHON"
CHECKPOINT = ".ckpt"  # how the name of a model ends that is a path
PACKAGE = "unbabel-comet"
INSTALL = f"{PACKAGE} 'setuptools<82'"  # 2.2.7 does not start with a newer one, nor ask for an older one
LOOK = "import sys; from importlib.util import find_spec; sys.exit(0 if find_spec('comet') else 3)"
MISSING = 3  # the exit code of LOOK where the package is
Lines = tuple[Sequence[str], Sequence[str], Sequence[str]]  # sources, hypotheses, references; equally many


class CometConfig(Config):
    """Section `score.comet`: all that decides the scores beside the text."""

    model: str = Field(min_length=1)
    precision: Literal["float32", "float16"]


class ScoreConfig(Config):
    """Section `score`: what is computed beside the usual metrics."""

    comet: CometConfig | None


def check(config: CometConfig) -> str:
    """The interpreter to run COMET with. Raises UserError where COMET cannot run on this machine, as far as a second of looking tells."""
    python = os.environ.get(PYTHON)
    if not python:
        raise UserError(
            f"COMET runs in an interpreter of its own, and {PYTHON} names none: make one (python3 -m venv ~/comet && "
            f"~/comet/bin/pip install {INSTALL}), then export {PYTHON}=~/comet/bin/python"
        )
    try:
        found = subprocess.run([python, "-I", "-c", LOOK], stdin=subprocess.DEVNULL, capture_output=True).returncode
    except OSError as error:
        raise UserError(f"{PYTHON} is {python}, which cannot be run ({error.strerror}): name a Python that has {PACKAGE}") from None
    if found == MISSING:
        raise UserError(f"{PACKAGE} is not installed for {python}, which {PYTHON} names: {python} -m pip install {INSTALL}")
    if found:
        raise UserError(f"{PYTHON} is {python}, which is no working Python 3: name one that has {PACKAGE}")
    path = Path(config.model)
    if path.is_dir():
        raise UserError(f"COMET's model {path} is a folder: name the checkpoint in it, mostly {path / 'checkpoints/model.ckpt'}")
    if path.suffix == CHECKPOINT and not path.is_file():
        raise UserError(f"COMET's model {path} is no file: name a checkpoint, or a model of the Hugging Face hub")
    return python


def comet(sets: Mapping[str, Lines], config: CometConfig, device: Literal["auto", "cpu", "cuda"]) -> dict[str, Scored]:
    """The score of every line of each set, times 100, and the signature. Raises UserError for whatever goes wrong over there."""
    python = check(config)
    scores: dict[str, Scored] = {}
    with _worker(python, config, device) as process, Progress("comet", sum(len(lines[0]) for lines in sets.values()), "lines") as progress:
        _, ready = _answer(process, f"it loaded {config.model}")
        name = [] if config.model.endswith(CHECKPOINT) else [f"model:{config.model}"]
        version = [f"precision:{config.precision}", f"batch:{comet_worker.BATCH}", f"version:{ready['version']}"]
        signature = "|".join([*name, f"sha256:{ready['sha256']}", *version])
        for name_of_set, lines in sets.items():
            doing = f"it scored {name_of_set}"
            _ask(process, lines, doing)
            kind, value = _answer(process, doing)
            while kind == "done":
                progress.advance(value)
                kind, value = _answer(process, doing)
            scores[name_of_set] = _checked(value, len(lines[0]), name_of_set), signature
    return scores


@contextmanager
def _worker(python: str, config: CometConfig, device: str) -> Iterator[subprocess.Popen[str]]:
    """The other process, isolated (-I) from this one's modules, whose names are the same as some of its own; ended with the block."""
    command = [python, "-I", comet_worker.__file__, config.model, config.precision, device]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="ascii")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], lines: Lines, doing: str) -> None:
    samples = [{"src": source, "mt": hypothesis, "ref": reference} for source, hypothesis, reference in zip(*lines, strict=True)]
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(samples) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise _ended(process, doing) from None


def _answer(process: subprocess.Popen[str], doing: str) -> tuple[str, Any]:
    """The next answer, its kind and its value. Raises UserError for an error and where there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise _ended(process, doing)
    ((kind, value),) = json.loads(line).items()
    if kind == "error":
        raise UserError(f"COMET: {value}: put that right, or do without COMET")
    return str(kind), value


def _ended(process: subprocess.Popen[str], doing: str) -> UserError:
    code = process.wait()
    if code < 0:
        ended = f"COMET was ended by {signal.Signals(-code).name}"
        return UserError(f"{ended} while {doing}, mostly for want of memory: free some, or take a smaller model")
    return UserError(f"COMET ended with exit code {code} while {doing}: what it said above tells why")


def _checked(scores: list[float], lines: int, name: str) -> list[float]:
    """`scores` times 100, if there is one for each line and all are numbers."""
    if len(scores) != lines:
        raise UserError(f"COMET gave {len(scores):,} scores for the {lines:,} lines of {name}: try another version of {PACKAGE}")
    for number, score in enumerate(scores, start=1):
        if not math.isfinite(score):
            raise UserError(f"COMET gave line {number:,} of {name} the score {score}: take precision float32, or another model")
    return [100 * score for score in scores]
