"""A Dask scheduler and workers as processes of this machine, started as a user starts them, and stopped by their ids."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.copy_task import PROJECT


class Cluster:
    """Processes by name: "scheduler", and whatever the workers are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def scheduler(self, *options: str, allowed_failures: int = 3) -> None:
        """Start the scheduler, again at the same port where there was one. It lets so many workers die over a task."""
        self._start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(self.port), *options, failures=allowed_failures)

    def worker(self, name: str, path: Path = PROJECT) -> None:
        """Start a worker of one thread, in a folder that has nothing to do with the project, with the packages in `path`."""
        self._start(name, "worker", self.address, "--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder), path=path)

    def kill(self, *names: str) -> None:
        """End processes without a word, and wait until they are gone."""
        for name in names:
            self.processes[name].send_signal(signal.SIGKILL)
            self.processes.pop(name).wait()

    def _start(self, name: str, *command: str, path: Path = PROJECT, failures: int = 3) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        environment = os.environ | {"PYTHONPATH": str(path), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(failures)}
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "dask", *command, "--no-dashboard"], cwd=self.folder, env=environment, stdout=log, stderr=log
        )
        log.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster without processes yet, whose logs go to `folder`; what is left of it is killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.kill(*list(found.processes))
