"""Copies of the toy pipeline, run and not yet run, and a Prefect server."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from pipelines import dvc
from tests.pipelines.toy import PARAMS, PIPELINE, WORK, Toy, wait_until

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nothing of the user's settings, and nothing written outside the tests' folder."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_", "GIT_", "PYTHONUNBUFFERED"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {
        "HOME": str(home),
        "PATH": path,
        "PREFECT_HOME": str(home / "prefect"),
        "DVC_SITE_CACHE_DIR": str(home / "dvc"),
        "DVC_NO_ANALYTICS": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The toy pipeline once `dvc repro` has run all of it."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "stages").mkdir()
    (folder / "stages" / "work.py").write_text(WORK)
    (folder / "stages" / "check.py").write_text("")
    shutil.copytree(PROJECT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    toy = Toy(folder, environment)
    subprocess.run(["git", "init", "-q"], cwd=folder, env=environment, check=True)
    for arguments in (["init", "-q"], ["repro", "-q"]):
        code, output = toy.run("dvc", *arguments)
        assert code == 0, output
    return folder


@pytest.fixture
def toy(tmp_path: Path, done: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """A copy of the toy pipeline that is up to date, the current folder of the test."""
    toy = Toy(tmp_path / "toy", environment)
    shutil.copytree(done, toy.folder)
    toy.ran()
    for started in toy.folder.glob("*.started"):
        started.unlink()
    monkeypatch.chdir(toy.folder)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield toy
    toy.kill()


@pytest.fixture
def children(toy: Toy) -> Iterator[dvc.Children]:
    """Those of a flow in the folder of the toy."""
    with closing(dvc.Children()) as children:
        yield children


@pytest.fixture
def fresh(toy: Toy) -> Toy:
    """A copy of the toy pipeline of which nothing has been run."""
    shutil.rmtree(toy.folder / ".dvc" / "cache")
    for name in ("dvc.lock", "prepared", "model-a", "model-b", "scores", "metrics.json", "others"):
        (toy.folder / name).unlink()
    return toy


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The setting that names a Prefect server, which saves each flow the start of its own."""
    with running_server(environment, tmp_path_factory.mktemp("server")) as url:
        yield {"PREFECT_API_URL": url}


@contextmanager
def running_server(environment: dict[str, str], folder: Path) -> Iterator[str]:
    """A Prefect server with its log in `folder`, and the address of its API."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"],
            env=environment | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return bool(urlopen(f"{url}/health", timeout=5).status == 200)
        except (URLError, TimeoutError):
            return False

    try:
        wait_until(answers, "the server does not start")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
