"""The stages `clean` and `shard` on a real Dask cluster: the bytes of local processes, whoever is killed."""

import copy
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.pairs import Pair
from nmt.raw import Manifest, write_manifest, write_raw
from nmt.tokenizer import TokenizerConfig, train_tokenizer
from tests.copy_task import HARDWARE, PROJECT
from tests.dask_cluster import cluster
from tests.pipelines.toy import wait_until

PARAMS = YAML(typ="safe", pure=True).load((PROJECT / "params.yaml").read_text("utf-8"))
OUTS = [Path(name) for name in ("clean", "ledger.parquet", "cleaning.json", "shards", "statistics.json")]
CLEAN = ["corpora.mine", "raw", "manifest.json", "clean", "ledger.parquet", "cleaning.json"]
SHARD = ["corpora.mine", "clean", "raw", "tokenizer.model", "shards", "statistics.json"]
# Small chunks and shards, so that there are many.
PROGRAM = """\
from stages import clean, shard
from stages.command import run
clean.CHUNK, shard.CHUNK, shard.PAIRS_PER_SHARD = 2, 5, 40
run({stage}.main)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(5)
    words = ["Haus", "Öl", "c\u2028d", "e\x85f", "ein", "alt", "m" * 40]
    lines = [" ".join(rng.choices(words, k=rng.randint(0, 4))) for _ in range(1200)]
    pairs = [Pair("train", "a", src, tgt) for src, tgt in zip(lines[::2], lines[1::2], strict=True)]
    pairs += [Pair("valid", "v", "Haus", "alt"), Pair("test", "t", "ein Öl", "alt")]
    Path("raw").mkdir()
    sets = write_raw(pairs, Path("raw"), ("en", "de"), ["train", "valid", "test"])
    write_manifest(Path("manifest.json"), Manifest(languages={"src": "en", "tgt": "de"}, source={}, sets=sets, counted={}))
    config = TokenizerConfig(type="bpe", vocab_size=300, normalization="identity", sample_lines=1000)
    Path("tokenizer.model").write_bytes(train_tokenizer(lines, config, "tokenizer"))
    return tmp_path


def start(stage: str, **hardware: Any) -> subprocess.Popen[str]:
    corpus = copy.deepcopy(PARAMS["corpora"]["demo"]) | {"languages": {"src": "en", "tgt": "de"}, "test": ["test"]}
    YAML(typ="safe", pure=True).dump({"corpora": {"mine": corpus}, "hardware": HARDWARE | hardware}, Path("params.yaml"))
    command = [sys.executable, "-c", PROGRAM.format(stage=stage), *{"clean": CLEAN, "shard": SHARD}[stage]]
    return subprocess.Popen(command, env={"PATH": "", "PYTHONPATH": str(PROJECT)}, stdout=-1, stderr=subprocess.STDOUT, text=True)


def run(stage: str, **hardware: Any) -> tuple[int, str]:
    process = start(stage, **hardware)
    output, _ = process.communicate(timeout=100)
    return process.returncode, output


def outputs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for top in OUTS for path in (top, *top.rglob("*")) if path.is_file()}


def without_outputs() -> None:
    for path in OUTS:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def chunks(stage: str) -> dict[str, int]:
    """The finished ones, by their inodes."""
    return {path.name: path.stat().st_ino for path in Path(f".scratch/{stage}").glob("*/*") if path.name[-1].isdigit()}


@pytest.mark.slow
@pytest.mark.essential
def test_whoever_is_killed_the_bytes_are_those_of_one_process(project: Path) -> None:
    for stage in ("clean", "shard"):
        code, output = run(stage, workers=1)
        assert code == 0, output
    expected = outputs()
    assert len([name for name in expected if name.endswith(".arrow")]) > 3
    without_outputs()
    with cluster(project / "dask") as dask:
        dask.scheduler()
        for name in ("first", "second"):
            dask.worker(name)

        # A worker is killed: Dask gives its tasks to the other one.
        process = start("clean", dask=dask.address, patience=60)
        _until(process, "clean", 20)
        dask.kill("first")
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
        assert all(expected[name] == found for name, found in outputs().items()) and len(outputs()) == 4

        # The last worker is killed, then the scheduler.
        process = start("shard", dask=dask.address, patience=2)
        _until(process, "shard", 10)
        dask.kill("second")
        before = _ends(process, f"error: the Dask scheduler at {dask.address} has had no worker for 2 s (hardware.patience): start some ")
        dask.worker("third")
        process = start("shard", dask=dask.address, patience=60)
        _until(process, "shard", len(before) + 10)
        dask.kill("scheduler")
        later = _ends(process, f"error: the Dask scheduler at {dask.address} is gone: start it again; ")
        assert before.items() < later.items(), "a finished chunk was made again"

        dask.scheduler()
        dask.worker("fourth")
        code, output = run("shard", dask=dask.address)
        assert code == 0, output
        assert outputs() == expected and list(Path(".scratch/shard").iterdir()) == []


def _until(process: subprocess.Popen[str], stage: str, count: int) -> None:
    """Wait until so many chunks are done, and hold that it goes on."""
    wait_until(lambda: len(chunks(stage)) >= count or process.poll() is not None, "no chunk", 60)
    assert process.poll() is None, process.communicate()[0]


def _ends(process: subprocess.Popen[str], sentence: str) -> dict[str, int]:
    """The process ends with the sentence and without outputs; returns the finished chunks."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and output.splitlines()[-1].startswith(sentence) and "Traceback" not in output, output
    assert not Path("shards").exists() and not Path("statistics.json").exists()
    return chunks("shard")


@pytest.mark.slow
def test_ctrl_c_leaves_the_finished_chunks_and_no_output(project: Path) -> None:
    with cluster(project / "dask") as dask:
        dask.scheduler()
        dask.worker("first")
        process = start("clean", dask=dask.address)
        _until(process, "clean", 5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130 and output.splitlines()[-1].startswith("stopped: "), output
        assert outputs() == {} and len(chunks("clean")) >= 5
