"""A task that a tiny model learns in seconds: the target is the source. Shards, parameters and child processes for it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from ruamel.yaml import YAML

from nmt.batches import Batch, Update, updates
from nmt.checkpoint import checkpoints, step_of
from nmt.model import ModelConfig
from nmt.symbols import EOS
from nmt.training import TrainConfig, Trainer
from tests.shards import write_shards

PROJECT = Path(__file__).resolve().parent.parent
VOCAB = 50
FIRST = EOS + 1  # of the ordinary tokens
TOKENIZER = "0" * 64
MODEL: dict[str, Any] = dict(layers=1, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.1, positions="sinusoidal")
TRAIN: dict[str, Any] = dict(
    updates=8,
    tokens_per_update=100,
    microbatches=2,
    warmup_updates=20,
    label_smoothing=0.1,
    adam_beta1=0.9,
    adam_beta2=0.98,
    adam_epsilon=1e-9,
    checkpoint_every=2,
    checkpoints_kept=2,
    patience=None,
    precision="float32",
)
OUTS = ("checkpoints", "training.tsv")
STAGE = ("stages.train", "variants.toy", "shards", *OUTS)  # the command, to be run where `write_corpus` and `write_params` wrote
HARDWARE = dict(device="cpu", threads=1, scratch=".scratch", decode_tokens=1000)
Ids = list[int]

torch.set_num_threads(1)  # a second thread gains nothing at these sizes, and costs much where cores are shared


def copies(count: int, seed: int, longest: int = 6) -> list[tuple[Ids, Ids]]:
    """Pairs of a random sentence of 1 to `longest` tokens and itself."""
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(FIRST, VOCAB, rng.integers(1, longest + 1)).tolist() for _ in range(count)]
    return [(sentence, sentence) for sentence in sentences]


def write_corpus(shards: Path, train: int = 300, valid: int = 40, size: int = 500_000) -> Path:
    """Shards of the copy task, as the stage `shard` leaves them."""
    write_shards(copies(train, 1), shards / "train", VOCAB, TOKENIZER, size)
    write_shards(copies(valid, 2), shards / "valid", VOCAB, TOKENIZER)
    return shards


def trainer(seed: int = 1, model: Mapping[str, Any] = MODEL, **train: Any) -> Trainer:
    """A fresh model on the CPU."""
    return Trainer(TrainConfig(**{**TRAIN, **train}), ModelConfig(**model), VOCAB, seed, torch.device("cpu"))


def first_updates(shards: Path, count: int, of: Trainer) -> list[Update]:
    """The updates 1 to `count` of a training."""
    plan = updates(shards / "train", of.config.tokens_per_update, of.config.microbatches, of.seed)
    return [next(plan) for _ in range(count)]


def one_update(pieces: Sequence[Batch]) -> Update:
    """An update of these pieces, of pairs that stand nowhere."""
    pairs = [(0, n) for piece in pieces for n in range(len(piece.src))]
    return Update(pairs, sum(piece.tokens for piece in pieces), len(pieces), dict(enumerate(pieces)))


def write_params(folder: Path, model: Mapping[str, Any] = MODEL, hardware: Mapping[str, Any] = HARDWARE, **train: Any) -> None:
    """A params.yaml with all that the stage `train` reads of it."""
    content = {"seed": 1, "variants": {"toy": {"model": dict(model), "train": {**TRAIN, **train}}}, "hardware": dict(hardware)}
    YAML(typ="safe", pure=True).dump(content, folder / "params.yaml")


def start(folder: Path, *arguments: str, project: Path = PROJECT, preexec: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    """Start `python -m` with these arguments in `folder`, with the code of `project`, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=preexec,
    )


def run(folder: Path, *arguments: str, project: Path = PROJECT, preexec: Callable[[], None] | None = None) -> tuple[int, str]:
    """Exit code and output of `python -m` with these arguments in `folder`."""
    process = start(folder, *arguments, project=project, preexec=preexec)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def ended(process: subprocess.Popen[str]) -> None:
    """Wait for a training; stop here, with its output, when it failed."""
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(output)


def outs(folder: Path = Path()) -> dict[str, bytes]:
    """All files that the stage left in `folder`, by name."""
    paths = [path for name in OUTS for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def last_saved(folder: Path) -> int:
    """Step of the last checkpoint of the training in `folder`, 0 before the first."""
    return max((step_of(path) for at in folder.glob(".scratch/train/*/checkpoints") for path in checkpoints(at)), default=0)


def at_work(folder: Path) -> list[int]:
    """Ids of the processes whose working directory is `folder`."""
    found = psutil.process_iter(["cwd", "status"])
    return [process.pid for process in found if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE]


def wait(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = 100) -> None:
    """Wait until `condition` holds. Fails after `seconds`, and when `process` ends before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_for(folder: Path, step: int, process: subprocess.Popen[str] | None = None) -> None:
    """Wait until a checkpoint of this step or a later one is there."""
    wait(lambda: last_saved(folder) >= step, process)


@contextmanager
def other_file_system(here: Path) -> Iterator[Path]:
    """A passing folder on another file system than `here`; the test is skipped where there is none."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == here.stat().st_dev:
        pytest.skip("no second file system here")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def trained_here(folder: Path, **train: Any) -> dict[str, bytes]:
    """What a training in `folder`, with these parameters, leaves behind in one process of this machine."""
    write_corpus(folder / "shards")
    write_params(folder, **train)
    code, output = run(folder, *STAGE)
    assert code == 0, output
    return outs(folder)
