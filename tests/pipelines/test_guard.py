"""Whoever is killed, the guard, its caller or the command: what stands below saves its work and ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipelines.toy import wait_until

# Stands for `dvc`: ignores SIGINT while its stage runs, and then says how that ended.
COMMAND = """
import signal, subprocess, sys
handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
stage = subprocess.Popen([sys.executable, "stage.py"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
print("stage", stage.wait(), flush=True)
sys.exit(stage.returncode and 255)
"""
# Stands for a stage: saves on SIGINT and, as ours do when `dvc` is gone, on SIGTERM.
STAGE = """
import ctypes, signal, sys, time
from pathlib import Path

def save(*_):
    Path("saved").open("a").write("x")
    sys.exit(7)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if Path("deaf").exists() else save)
ctypes.CDLL(None).prctl(1, 15)
Path("started").touch()
while not Path("go").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with both scripts. Afterwards nothing may run there."""
    monkeypatch.chdir(tmp_path)
    Path("command.py").write_text(COMMAND)
    Path("stage.py").write_text(STAGE)
    yield tmp_path
    for process in running(tmp_path):
        process.kill()


GUARD = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pipelines.guard import Guard
sys.exit(Guard(lambda: os.execv(sys.executable, [sys.executable, "command.py"])).watch())
"""


def start() -> subprocess.Popen[bytes]:
    """The guard, once the stage runs."""
    with Path("log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", GUARD], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
    wait_until(Path("started").exists, "the stage does not start")
    return process


def running(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cwd", "status"])
    me = os.getpid()
    return [p for p in found if p.info["cwd"] == str(folder) and p.pid != me and p.info["status"] != psutil.STATUS_ZOMBIE]


def end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(timeout=60)


def test_a_command_that_ends_gives_its_code(here: Path) -> None:
    Path("go").touch()
    process = start()
    assert process.wait(timeout=60) == 0
    assert end(process) == 0 and Path("log").read_text() == "stage 0\n" and not Path("saved").exists()


@pytest.mark.parametrize("way", ["let go", "SIGTERM"])
def test_a_stop_reaches_the_stage_once_and_the_command_records_how_it_ended(here: Path, way: str) -> None:
    process = start()
    if way == "SIGTERM":
        process.terminate()
        assert process.wait(timeout=60) == 255
    assert end(process) == 255
    assert Path("log").read_text() == "stage 7\n" and Path("saved").read_text() == "x" and running(here) == []


def test_a_stage_that_does_not_end_is_killed_with_all_it_started(here: Path) -> None:
    Path("deaf").touch()
    process = start()
    assert process.stdin is not None
    process.stdin.write(b"0.5")
    began = time.monotonic()
    assert end(process) == 128 + signal.SIGKILL and time.monotonic() - began < 20
    assert running(here) == []


@pytest.mark.parametrize("victim", ["caller", "guard", "command"])
def test_whoever_is_killed_the_stage_saves_and_nothing_is_left(here: Path, victim: str) -> None:
    if victim == "caller":
        script = f"import subprocess, sys; subprocess.Popen({[sys.executable, '-c', GUARD]}, stdin=-1).wait()"
        process = subprocess.Popen([sys.executable, "-c", script])
        wait_until(Path("started").exists, "the stage does not start")
        process.kill()
    else:
        process = start()
        (child,) = psutil.Process(process.pid).children()
        (process if victim == "guard" else child).kill()
        if victim == "command":
            assert process.wait(timeout=60) == 128 + signal.SIGKILL
        assert process.stdin is not None
        process.stdin.close()
    process.wait(timeout=60)
    wait_until(lambda: running(here) == [], "something is left", seconds=30)
    assert Path("saved").read_text() == "x"
