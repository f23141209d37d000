"""A toy pipeline under real DVC and git, prepare -> train@a, train@b -> score, and `other` by itself.

Its one script is led by files beside it: NAME.hold makes the stage NAME wait, NAME.fail makes it fail, NAME.deaf makes it
ignore SIGINT. It leaves NAME.started, on SIGINT NAME.saved, and a line in ran.txt when it has done its work.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

PARAMS = """\
n: 1
variants:
  a: {x: 1}
  b: {x: 2}
"""

PIPELINE = """\
stages:
  prepare:
    cmd: python stages/work.py prepare prepared
    params: [n]
    outs: [prepared]
  train:
    matrix:
      variant: [a, b]
    cmd: python stages/work.py train-${item.variant} model-${item.variant} prepared params.yaml
    deps: [prepared]
    params: ["variants.${item.variant}"]
    outs: ["model-${item.variant}"]
  score:
    cmd: python stages/work.py score scores model-a model-b && echo '{"bleu":27.3}' > metrics.json
    deps: [model-a, model-b]
    outs: [scores]
    metrics:
      - metrics.json:
          cache: false
  other:
    cmd: python stages/work.py other others
    params: [n]
    outs: [others]
"""

WORK = """\
import signal, sys, time
from pathlib import Path

name, out, *sources = sys.argv[1:]
if Path(name + ".deaf").exists():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    Path(name + ".started").touch()
    end = time.monotonic() + 120
    while Path(name + ".hold").exists() and time.monotonic() < end:
        print("waiting", end="\\r")
        time.sleep(0.02)
except KeyboardInterrupt:
    Path(name + ".saved").touch()
    sys.exit("saved")
if Path(name + ".fail").exists():
    sys.exit("error: no good data in line 7")
Path(out).write_text(name + "".join(Path(source).read_text() for source in sources))
with open("ran.txt", "a") as ran:
    print(name, file=ran)
"""


class Toy:
    """The toy pipeline in a folder of its own, and the processes that were started in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m` with these arguments, in a session of its own as a terminal's job is in its own group."""
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of `python -m` with these arguments."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def wait_for(self, name: str) -> None:
        """Wait until the file `name` is there."""
        wait_until(lambda: (self.folder / name).exists(), f"no {name}")

    def touch(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def ran(self) -> list[str]:
        """The stages that have done their work since the last call, in order."""
        file = self.folder / "ran.txt"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def set(self, old: str, new: str) -> None:
        """Change params.yaml."""
        text = self.read("params.yaml")
        assert old in text
        (self.folder / "params.yaml").write_text(text.replace(old, new))

    def processes(self) -> list[psutil.Process]:
        """All that run in this folder or below it: only what the test has started can."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(self.folder):
                    found.append(process)
            except psutil.Error:  # ended meanwhile, or somebody else's
                continue
        return found

    def kill(self) -> None:
        """End all that is left of them."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until(condition: Callable[[], bool], message: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.05)
