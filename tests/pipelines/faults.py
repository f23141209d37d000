"""A project, a Prefect server and a runner of its deployments, all real, and what may happen to them while a flow runs."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil

from tests.pipelines.toy import wait_until

FINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


class Site:
    """One machine: a server on a free port of loopback with its own PREFECT_HOME, a runner in the project's folder."""

    def __init__(self, project: Path, home: Path, environment: dict[str, str]) -> None:
        self.project, self.home = project, home
        home.mkdir()
        shutil.copyfile(project / "pyproject.toml", home / "pyproject.toml")  # a server is started where that is, as in the README
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = environment | {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        self.server: subprocess.Popen[bytes] | None = None
        self.runner: subprocess.Popen[bytes] | None = None

    # --- the parts ---

    def start_server(self) -> None:
        self.server = self._start("server", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port), "--no-ui")
        wait_until(self.answers, f"the server does not start: {self.home / 'server.log'}", 400)

    def start_runner(self) -> None:
        self.runner = self._start("runner", "pipelines.serve", "project")

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.project if name == "runner" else self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All that run in the project's folder."""
        found = psutil.process_iter(["cwd", "status"])
        return [
            p for p in found if p.info["cwd"] == str(self.project) and p.info["status"] != psutil.STATUS_ZOMBIE and p.pid != os.getpid()
        ]

    def part(self, name: str) -> list[psutil.Process]:
        """The processes that are the `runner`, `flow`, `nursery`, `guard`, `dvc` or `stage` now; `machine`: all of them."""
        modules = {"runner": "pipelines.serve", "flow": "prefect.", "nursery": "pipelines.nursery", "stage": "stages"}
        found = []
        for process in self.processes():
            try:
                own = process.name()  # which those have that the nursery forks
                module = next((word for word in process.cmdline()[1:] if not word.startswith("-")), "")
            except psutil.Error:
                continue  # it has ended meanwhile
            forked = own in ("guard", "dvc")
            if name in ("machine", own) or (not forked and name in modules and module.startswith(modules[name])):
                found.append(process)
        return found

    def locks(self) -> list[str]:
        """The paths that DVC holds locked for a process that lives. (Those of a dead one stay in its file, and are nobody's.)"""
        found = json.loads((self.project / ".dvc/tmp/rwlock").read_text())
        holders = [
            (path, holder) for kind in found.values() for path, one in kind.items() for holder in (one if isinstance(one, list) else [one])
        ]
        return [path for path, holder in holders if psutil.pid_exists(holder["pid"])]

    def ensure_runner(self, ended: bool) -> None:
        """Have a runner, where the one before has ended or is about to."""
        if self.runner is not None and ended:
            self.runner.wait(timeout=120)
        if self.runner is None or self.runner.poll() is not None:
            self.start_runner()

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            process.kill()
        for started in (self.runner, self.server):
            if started is not None:
                try:
                    os.killpg(started.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                started.wait()

    # --- the server's view ---

    def api(self, path: str, content: Any = None) -> Any:
        """What the server answers: to a POST where there is `content`."""
        data = None if content is None else json.dumps(content).encode()
        url = f"{self.environment['PREFECT_API_URL']}/{path}"
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=30) as answer:
            return json.load(answer)

    def answers(self) -> bool:
        assert self.server is not None and self.server.poll() is None, (self.home / "server.log").read_text()
        try:
            return bool(self.api("health"))
        except (URLError, TimeoutError, ConnectionError):
            return False

    def ask(self) -> str:
        """Ask for a run of the deployment. Returns its id."""
        wait_until(lambda: bool(self._deployments()), f"the runner does not start: {self.home / 'runner.log'}", 400)
        return str(self.api(f"deployments/{self._deployments()[0]['id']}/create_flow_run", {})["id"])

    def taken_up(self) -> str:
        """Leave a run as a runner does that is lost between taking it up and starting it. Returns its id."""
        flow = self.api("flows/", {"name": "lost"})["id"]
        return str(self.api("flow_runs/", {"flow_id": flow, "state": {"type": "PENDING"}})["id"])

    def _deployments(self) -> list[dict[str, Any]]:
        return list(self.api("deployments/filter", {"deployments": {"name": {"any_": ["project"]}}}))

    def state(self, run: str) -> dict[str, Any]:
        return dict(self.api(f"flow_runs/{run}")["state"])

    def running(self, run: str) -> bool:
        return bool(self.state(run)["type"] == "RUNNING")

    def ended(self, run: str, seconds: float = 240) -> str:
        """The type of the state that a run ends in."""
        wait_until(lambda: self.state(run)["type"] in FINAL, f"the run does not end: {run}", seconds)
        return str(self.state(run)["type"])

    def cancel(self, run: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "prefect", "flow-run", "cancel", run],
            cwd=self.home, env=self.environment, check=True, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Something that happens, and the states that Prefect may then show: none where the run goes on."""

    name: str
    happen: Callable[[Site, str], None]
    states: frozenset[str]
    of: str = "flow"  # the part that must be there for it
    ends_runner: bool = False


def _send(number: signal.Signals, *parts: str) -> Callable[[Site, str], None]:
    def happen(site: Site, run: str) -> None:
        for process in [process for part in parts for process in site.part(part)]:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    return happen


def _ctrl_c(site: Site, run: str) -> None:
    """In the runner's terminal, whose group the flow belongs to."""
    assert site.runner is not None
    os.killpg(site.runner.pid, signal.SIGINT)


def _lose_server(site: Site, run: str) -> None:
    """The server and its database, and both are started again."""
    assert site.server is not None
    os.killpg(site.server.pid, signal.SIGKILL)
    site.server.wait()
    time.sleep(5)
    site.start_server()


FAULTS = (
    Fault("cancel", lambda site, run: site.cancel(run), frozenset({"CANCELLED"})),
    Fault("Ctrl-C of the runner", _ctrl_c, frozenset({"CANCELLED", "CRASHED"}), ends_runner=True),
    Fault("SIGTERM of the runner", _send(signal.SIGTERM, "runner"), frozenset({"CANCELLED", "CRASHED"}), ends_runner=True),
    Fault("SIGTERM of the machine", _send(signal.SIGTERM, "machine"), frozenset({"CANCELLED", "CRASHED", "FAILED"}), ends_runner=True),
    Fault("SIGKILL of the flow", _send(signal.SIGKILL, "flow"), frozenset({"CRASHED"})),
    Fault("SIGKILL of the runner", _send(signal.SIGKILL, "runner"), frozenset({"CRASHED"}), ends_runner=True),
    Fault("SIGKILL of the runner and the flow", _send(signal.SIGKILL, "runner", "flow"), frozenset({"CRASHED"}), ends_runner=True),
    Fault("SIGKILL of the machine", _send(signal.SIGKILL, "machine"), frozenset({"CRASHED"}), ends_runner=True),
    Fault("SIGKILL of the server", _lose_server, frozenset()),
    Fault("SIGKILL of the nursery", _send(signal.SIGKILL, "nursery"), frozenset(), "nursery"),
    Fault("SIGKILL of the guard", _send(signal.SIGKILL, "guard"), frozenset({"FAILED"}), "guard"),
    Fault("SIGKILL of dvc", _send(signal.SIGKILL, "dvc"), frozenset({"FAILED"}), "dvc"),
    Fault("SIGKILL of the stage", _send(signal.SIGKILL, "stage"), frozenset({"FAILED"}), "stage"),
)


def copy_deployments(project: Path, folder: Path) -> None:
    """Give a copy of the project what its runner reads."""
    for name in ("prefect.yaml", "pyproject.toml"):
        shutil.copyfile(project / name, folder / name)


def moment(chance: random.Random) -> float:
    """Seconds to wait, short ones more often."""
    return chance.random() ** 2 * 4


def choose(chance: random.Random, count: int) -> Sequence[Fault]:
    """So many faults in random order, each kind before any comes again."""
    chosen: list[Fault] = []
    while len(chosen) < count:
        chosen += chance.sample(FAULTS, len(FAULTS))
    return chosen[:count]
