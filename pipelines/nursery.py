"""A process that has DVC in memory, and forks from itself a `dvc` under guard for every call: a stage does not wait for DVC's start.

    flow ─ socket ─ nursery
       └── a socket for each call ─ guard ─ dvc ─ stage        (pipelines/guard.py)

The nursery ends when the flow closes its socket or dies. What it has forked is not concerned: each guard looks after its own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipelines import guard

LOST = 128 + signal.SIGKILL  # the code of a call whose guard was killed
LARGEST = 100_000  # bytes of a request
FILES = 64  # of a request


class Call:
    """One `dvc` that has been asked for. It is waited for as a `subprocess.Popen` is."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._ended = threading.Event()
        self.returncode: int | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Hear from the guard how it has ended."""
        code = LOST
        with self._line, suppress(ConnectionError):
            code = int(self._line.recv(100) or LOST)
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Returns the exit code: the command's, or LOST. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("dvc", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def stop(self, grace: float) -> None:
        """Have it save its work and end, within `grace` seconds. Returns at once."""
        with suppress(OSError):  # it has ended
            self._line.send(str(grace).encode())


class Nursery:
    """The flow's side. It is started with `environment` and ends by `close`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._start()

    def call(self, arguments: Sequence[str], log: Path, folder: Path, held: Sequence[int], environment: Mapping[str, str]) -> Call:
        """Start `dvc` with these arguments in `folder`, its output in the file `log`.

        The open files `held` stay open until it ends; `environment` is added to the nursery's.
        """
        request = json.dumps([list(arguments), str(folder.absolute()), dict(environment)]).encode()
        mine, its = socket.socketpair()
        with its, log.open("wb") as output:
            files = [its.fileno(), output.fileno(), *held]
            try:
                socket.send_fds(self._line, [request], files)
            except ConnectionError:  # somebody has killed it
                self.close()
                self._start()
                socket.send_fds(self._line, [request], files)
        return Call(mine)

    def close(self) -> None:
        """Let it end. Calls go on."""
        self._line.close()
        self._process.wait()

    def _start(self) -> None:
        self._line, its = socket.socketpair(type=socket.SOCK_SEQPACKET)  # a request is one packet
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.nursery", str(its.fileno())],
                cwd=Path(__file__).parents[1],
                pass_fds=[its.fileno()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # no Ctrl-C of the terminal is for it
            )


def serve(line: socket.socket) -> None:
    """The nursery's side. Returns when the flow has closed its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # of guards nothing is to be waited for
    while True:
        request, files, _, _ = socket.recv_fds(line, LARGEST, FILES)
        if not request:
            return
        if os.fork() == 0:
            try:
                line.close()
                _guarded(*json.loads(request), *files)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        for file in files:
            os.close(file)


def _guarded(arguments: list[str], folder: str, environment: dict[str, str], line: int, log: int, *held: int) -> None:
    """In a process of its own: run one `dvc`, and tell the exit code. The files `held` stay open in it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for source, standard in ((line, 0), (log, 1), (log, 2)):
        os.dup2(source, standard)
    os.close(line)
    os.close(log)
    os.chdir(folder)
    os.environ.update(environment)
    code = guard.Guard(lambda: _dvc(arguments)).watch()
    os.write(0, str(code).encode())


def _dvc(arguments: list[str]) -> int:
    from dvc.cli import main

    sys.argv = ["dvc", *arguments]  # by which DVC tells others who holds a file
    return int(main(arguments))


def _warm() -> None:
    """Have in memory what `dvc repro` imports, much of it only once it reads a pipeline."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    with suppress(DvcException), Repo() as repo:
        _ = repo.index.graph


if __name__ == "__main__":
    _warm()
    with socket.socket(fileno=int(sys.argv[1])) as flow:
        serve(flow)
