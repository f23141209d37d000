"""The deployments of prefect.yaml on a real server with a real runner: as declared, and unattended."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prefect.flows import load_flow_from_entrypoint

from pipelines import serve
from pipelines.serve import ServeError, deployments
from tests.pipelines.conftest import free_port, running_server
from tests.pipelines.toy import Toy, wait_until

PROJECT = Path(__file__).parents[2]
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), Path("initdb")).parent

DECLARED = """\
deployments:
  - name: project
    entrypoint: pipelines.repro.reproduce
    parameters: {targets: [train@a]}
    schedules: [{cron: "* * * * * */15", timezone: UTC, slug: often}]
    concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
"""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefect.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "prefect.yaml"
    path.write_text(DECLARED)
    return path


def test_every_deployment_is_taken_over_and_its_parameters_are_those_of_its_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    found = deployments([])
    assert {one.flow_name for one in found} == {"reproduce", "experiment", "sweep", "compare"}
    for one in found:
        assert one.entrypoint is not None and one.description and one.tags
        flow = load_flow_from_entrypoint(one.entrypoint)
        assert set(one.parameters) == set(inspect.signature(flow.fn).parameters)  # all of them, so that a reader sees what there is
        flow.validate_parameters(one.parameters)
        json.dumps(one.parameters)
        assert one.schedules and one.concurrency_options and one.concurrency_options.collision_strategy.value == "ENQUEUE"
    assert [one.name for one in deployments(["table3"])] == ["table3"]


def test_a_schedule_and_a_limit_are_what_the_file_says(declared: Path) -> None:
    (one,) = deployments([])
    assert (one.name, one.flow_name, one.parameters, one.concurrency_limit) == ("project", "reproduce", {"targets": ["train@a"]}, 1)
    (schedule,) = one.schedules or []
    assert (schedule.schedule.cron, schedule.schedule.timezone, schedule.slug) == ("* * * * * */15", "UTC", "often")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pipelines.repro.reproduce", "pipelines.repro.reproduct", "prefect.yaml, deployment project: .*reproduct"),
        ("* * * * * */15", "when it rains", "prefect.yaml, deployment project: .*when it rains"),
        ("slug: often", "slag: often", "prefect.yaml, deployment project: .*slag"),
        ("{targets: [train@a]}", "{targets: 7}", "prefect.yaml, deployment project: .*targets"),
        ("{targets: [train@a]}", "{target: []}", "prefect.yaml, deployment project: .*target"),
        ("    concurrency", "    concurency", "prefect.yaml, deployment project: .*concurency"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(old: str, new: str, message: str, declared: Path) -> None:
    declared.write_text(DECLARED.replace(old, new))
    with pytest.raises(ServeError, match=message):
        deployments([])


def test_an_unknown_deployment_and_a_missing_file_are_named(declared: Path) -> None:
    with pytest.raises(ServeError, match=r"no deployment nightly: known are project"):
        deployments(["nightly"])
    declared.unlink()
    with pytest.raises(ServeError, match=r"no prefect.yaml here"):
        deployments([])


def test_without_a_server_the_runner_says_what_to_do(
    declared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["serve"])
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert serve.main() == 2
    assert "`prefect server start` starts one" in capsys.readouterr().err


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL server of the test's own, and its address. It does not run as root."""
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's folders are closed to other users
    if user:
        shutil.chown(folder, user)
    port = free_port()

    def call(*command: str) -> None:
        subprocess.run([str(POSTGRES / command[0]), *command[1:]], user=user, cwd=folder, check=True, capture_output=True, timeout=120)

    call("initdb", "-D", "data", "-A", "trust", "-U", "prefect", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
    try:
        call("pg_ctl", "-D", "data", "-l", str(folder / "log"), "-o", options, "-w", "start")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "postgresql",
            marks=pytest.mark.skipif(not (POSTGRES / "initdb").exists(), reason="PostgreSQL is not here: Debian's package postgresql"),
        ),
    ]
)
def kept_in(request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The setting that names a Prefect server which keeps what it knows in this database."""
    folder = tmp_path / "server"
    folder.mkdir()
    if request.param == "sqlite":
        with running_server(environment | {"PREFECT_HOME": str(folder)}, folder) as url:
            yield {"PREFECT_API_URL": url}
    else:
        with postgres() as address, running_server(environment | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": address}, folder) as url:
            yield {"PREFECT_API_URL": url}


def ask(toy: Toy, path: str) -> Any:
    request = Request(f"{toy.environment['PREFECT_API_URL']}/{path}", b"{}", {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_schedule_runs_unattended_and_the_second_time_finds_nothing_to_do(fresh: Toy, kept_in: dict[str, str]) -> None:
    fresh.environment = fresh.environment | kept_in | {"PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    (fresh.folder / "prefect.yaml").write_text(DECLARED)
    runner = fresh.start("pipelines.serve")

    def ended() -> list[str]:
        runs = sorted(ask(fresh, "flow_runs/filter"), key=lambda run: str(run["expected_start_time"]))
        return [run["state"]["message"] for run in runs if run["state"]["type"] not in ("SCHEDULED", "PENDING", "RUNNING")]

    wait_until(lambda: runner.poll() is not None or len(ended()) >= 2, "the schedule does not run", 180)
    assert runner.poll() is None, runner.communicate()[0]
    assert ended()[:2] == ["2 stages are up to date", "nothing to do: every stage is up to date with dvc.lock"]
    assert fresh.ran() == ["prepare", "train-a"]
    runner.send_signal(signal.SIGTERM)
    output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 0, output
    (deployment,) = ask(fresh, "deployments/filter")
    assert not deployment["paused"] and [schedule["active"] for schedule in deployment["schedules"]] == [True]
