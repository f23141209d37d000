"""The stage `train`: killed, stopped, refused, repeated; what it leaves is the same."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.checkpoint import OPTIMIZER, WEIGHTS, checkpoints, open_checkpoint, step_of
from nmt.errors import UserError
from nmt.speed import Speed
from nmt.training import TrainConfig
from stages import train
from tests.copy_task import (
    HARDWARE,
    MODEL,
    OUTS,
    PROJECT,
    STAGE,
    TRAIN,
    last_saved,
    other_file_system,
    outs,
    run,
    start,
    wait_for,
    write_corpus,
    write_params,
)

LONG = dict(updates=150, checkpoint_every=2, checkpoints_kept=3)  # some seconds, much of it spent on checkpoints


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with params.yaml and shards, and the signals as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    write_corpus(Path("shards"))
    write_params(Path())
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


def main() -> None:
    train.main("variants.toy", Path("shards"), *map(Path, OUTS))


def left(**change: int) -> list[int]:
    """Steps of the checkpoints that a training of all its updates leaves behind."""
    config = TrainConfig(**{**TRAIN, **change})
    return config.kept_steps(config.updates)


def scratch(folder: Path = Path()) -> Path:
    """The one scratch folder of training."""
    [found] = (folder / ".scratch" / "train").iterdir()
    return found


def test_what_it_leaves_are_the_last_checkpoints_without_the_optimizer_and_a_table(project: Path) -> None:
    main()
    config = TrainConfig(**TRAIN)
    found = checkpoints(Path("checkpoints"))
    assert [step_of(path) for path in found] == left()
    for path in found:
        checkpoint = open_checkpoint(path)
        checkpoint.verify(WEIGHTS)
        assert not (path / OPTIMIZER).exists()
        facts = {key: checkpoint.state[key] for key in ("seed", "model", "train", "vocab_size", "step")}
        assert facts == {"seed": 1, "model": MODEL, "train": config.model_dump(), "vocab_size": 50, "step": step_of(path)}
    header, *rows = [line.split("\t") for line in Path("training.tsv").read_text().splitlines()]
    assert header[:3] == ["update", "tokens", "loss"] and [row[0] for row in rows] == [str(n) for n in range(1, 9)]
    valid = header.index("valid_loss")
    assert [row[0] for row in rows if row[valid]] == ["2", "4", "6", "8"]
    assert all(value for row in rows for name, value in zip(header, row, strict=True) if not name.startswith("valid"))


def test_the_outs_repeat_to_the_byte_in_another_place(project: Path) -> None:
    main()
    first = outs()
    for name in (*OUTS, ".scratch"):
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    main()
    assert outs() == first and len(first) == 2 * 2 + 1


def test_a_finished_run_is_laid_in_place_again_without_training(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main()
    first, saved = outs(), scratch() / "checkpoints" / "step-00000008" / WEIGHTS
    written = saved.stat().st_mtime_ns
    capsys.readouterr()
    shutil.rmtree("checkpoints")
    main()
    assert outs() == first and saved.stat().st_mtime_ns == written
    assert f"goes on from update 8 in {scratch()}" in capsys.readouterr().out
    assert saved.samefile("checkpoints/step-00000008/model.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        dict(warmup_updates=21),
        dict(tokens_per_update=101),
        dict(microbatches=1),
        dict(adam_beta2=0.97),
        dict(checkpoint_every=4),
        "model",
        "data",
    ],
)
def test_what_decides_the_state_starts_clean(project: Path, change: dict[str, float] | str, capsys: pytest.CaptureFixture[str]) -> None:
    main()
    first = outs()
    if change == "model":
        write_params(Path(), model={**MODEL, "dropout": 0.2})
    elif change == "data":
        write_corpus(Path("shards"), train=299)
    else:
        assert isinstance(change, dict)
        write_params(Path(), **change)
    capsys.readouterr()
    main()
    assert "goes on" not in capsys.readouterr().out
    assert len(list(Path(".scratch/train").iterdir())) == 2 and outs() != first


@pytest.mark.parametrize("change", [dict(updates=10), dict(checkpoints_kept=1), dict(patience=4)])
def test_what_decides_only_the_end_goes_on_in_the_same_place(project: Path, change: dict[str, int]) -> None:
    main()
    write_params(Path(), **change)
    main()
    assert scratch() and [step_of(path) for path in checkpoints(Path("checkpoints"))] == left(**change)
    state = open_checkpoint(checkpoints(Path("checkpoints"))[0]).state
    assert state["train"] == {**TRAIN, **change}


def test_hardware_decides_nothing(project: Path) -> None:
    main()
    write_params(Path(), hardware={**HARDWARE, "decode_tokens": 7})
    main()
    assert scratch()


def test_scratch_on_another_file_system_is_copied_from(project: Path) -> None:
    main()
    first = outs()
    shutil.rmtree("checkpoints")
    with other_file_system(project) as other:
        write_params(Path(), hardware={**HARDWARE, "scratch": str(other)})
        main()
        assert list(other.rglob(WEIGHTS))
    assert outs() == first


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("variants.tyo", {}, r"params\.yaml: there is no variants\.tyo: did you mean toy\?"),
        ("variants.toy", dict(updates=0), r"variants\.toy\.train\.updates is 0: it must be at least 1"),
        (
            "variants.toy",
            dict(tokens_per_update=5),
            r"train\.tokens_per_update is 5, but pair \d+ of shards/train/00000\.arrow has 7 tokens",
        ),
    ],
)
def test_what_is_wrong_in_params_leaves_no_outs(project: Path, section: str, change: dict[str, int], message: str) -> None:
    write_params(Path(), **change)
    with pytest.raises(UserError, match=f"^{message}"):
        train.main(section, Path("shards"), *map(Path, OUTS))
    assert outs() == {}


def test_the_table_of_speed_has_a_row_for_each_of_the_training_and_accounts_for_all_time(project: Path) -> None:
    main()
    header, *rows = [line.split("\t") for line in (scratch() / "speed.tsv").read_text().splitlines()]
    assert header[:3] == ["update", "seconds", "tokens_per_second"] and header[-1] == "memory"
    assert [row[0] for row in rows] == [line.split("\t")[0] for line in Path("training.tsv").read_text().splitlines()[1:]]
    for row in rows:
        named = dict(zip(header, map(float, row), strict=True))
        assert named["tokens_per_second"] > 0 and named["memory"] > 0.01
        assert 0 <= named["padding"] < 50
        assert sum(named[share] for share in Speed.SHARES) == pytest.approx(100, abs=0.4)


@pytest.mark.parametrize("part", ["train", "valid"])
def test_missing_shards_are_named(project: Path, part: str) -> None:
    shutil.rmtree(Path("shards", part))
    with pytest.raises(UserError, match=f"^shards/{part} holds no shards"):
        main()


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again_it_ends_with_the_same_bytes(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("never killed")
    shutil.copytree("shards", other / "shards")
    for folder in (project, other):
        write_params(folder, **LONG)
    code, output = run(other, *STAGE)
    assert code == 0, output
    chance = random.Random(7)
    reached = 0
    for _ in range(5):
        process = start(project, *STAGE)
        wait_for(project, reached + 2, process)
        time.sleep(chance.random() / 3)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was too fast to be killed"
        process.communicate()
        assert last_saved(project) > reached
        reached = last_saved(project)
        assert outs(project) == {}
    code, output = run(project, *STAGE)
    assert code == 0 and f"goes on from update {reached} " in output
    assert outs(project) == outs(other)
    assert not list(project.rglob("*.part")) and not list(project.rglob("*.old"))


@pytest.mark.slow
@pytest.mark.essential
def test_asked_to_stop_it_saves_and_the_next_run_goes_on_there(project: Path) -> None:
    write_params(project, **{**LONG, "updates": 400, "checkpoint_every": 100})
    reached = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(project, *STAGE)
        wait_for(project, reached // 100 * 100 + 100, process)
        asked = time.monotonic()
        process.send_signal(number)
        process.send_signal(number)  # launchers pass it on twice
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 128 + number and time.monotonic() - asked < 10
        [stopped] = re.findall(r"^stopped at update (\d+), which is saved: the same command goes on from there$", output, re.M)
        assert "Traceback" not in output and last_saved(project) == int(stopped) > reached
        assert re.findall(r"goes on from update (\d+) ", output) == [str(reached)] * (reached > 0)
        reached = int(stopped)
        assert outs(project) == {}
    code, output = run(project, *STAGE)
    assert code == 0 and f"goes on from update {reached} " in output and outs(project)


@pytest.mark.slow
def test_a_second_process_for_the_same_work_is_refused_while_the_first_one_runs(project: Path) -> None:
    write_params(project, **{**LONG, "updates": 4000})
    process = start(project, *STAGE)
    wait_for(project, 2, process)
    code, output = run(project, *STAGE)
    assert code == 2 and re.fullmatch(
        rf"error: {scratch()} is in use by process {process.pid}, since [-0-9: ]+: wait until it ends, or stop it\n", output
    )
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert "stopped at update" in process.communicate(timeout=30)[0]


@pytest.mark.slow
def test_an_edited_comment_costs_no_training_and_an_edited_line_does(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    code_folder = tmp_path_factory.mktemp("code")
    for package in ("nmt", "stages"):
        shutil.copytree(PROJECT / package, code_folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    loss = code_folder / "nmt" / "loss.py"
    text = loss.read_text()
    assert "CHUNK = 256  # " in text and run(project, *STAGE, project=code_folder)[0] == 0
    first, saved = outs(project), scratch() / "checkpoints" / "step-00000008" / WEIGHTS
    written = saved.stat().st_mtime_ns
    shutil.rmtree("checkpoints")
    loss.write_text(text.replace("CHUNK = 256  # ", "CHUNK = 256  # edited: "))
    code, output = run(project, *STAGE, project=code_folder)
    assert code == 0 and "goes on from update 8 " in output
    assert outs(project) == first and saved.stat().st_mtime_ns == written
    loss.write_text(text.replace("CHUNK = 256  # ", "CHUNK = 1025  # "))
    code, output = run(project, *STAGE, project=code_folder)
    assert code == 0 and "goes on" not in output
    assert len(list(Path(".scratch/train").iterdir())) == 2


def small_files() -> None:
    """Run in a child: no file may grow beyond 20 kB, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_full_disk_stops_the_run_in_one_sentence_and_the_checkpoint_before_is_used(project: Path) -> None:
    write_params(project, updates=4)
    assert run(project, *STAGE)[0] == 0
    for name in OUTS:
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    write_params(project, updates=8)
    code, output = run(project, *STAGE, preexec=small_files)
    assert code == 2 and "Traceback" not in output
    assert output.splitlines()[-1] == "error: a file could not be written (File too large): make room, then run the same command again"
    assert outs(project) == {} and last_saved(project) == 4
    code, output = run(project, *STAGE)
    assert code == 0 and "goes on from update 4 " in output


@pytest.mark.slow
def test_a_scratch_folder_without_room_keeps_the_checkpoint_before(project: Path) -> None:
    """A file system of its own with room for some checkpoints, but not for all of a run that keeps them."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    write_params(project, **{**LONG, "checkpoints_kept": 70})
    (project / ".scratch").mkdir()
    command = f"mount -t tmpfs -o size=1m none .scratch && {sys.executable} -m {' '.join(STAGE)}; code=$?; cp -r .scratch seen; exit $code"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: a file could not be written (No space left on device): make room, then run the same command again"
    )
    assert outs(project) == {}
    [kept] = (project / "seen" / "train").glob("*/checkpoints")
    reached = step_of(checkpoints(kept)[-1])
    for path in checkpoints(kept):
        open_checkpoint(path).verify(WEIGHTS)
    shutil.rmtree(project / ".scratch")
    (project / "seen").rename(project / ".scratch")
    code, output = run(project, *STAGE)
    assert code == 0 and f"goes on from update {reached} " in output
