"""The automation that finds dead runs: it fits the heartbeat, and is made once. That it finds them, test_faults.py sees."""

import json
import subprocess
import sys
import tomllib
from typing import Any
from urllib.request import Request, urlopen

import pytest

from pipelines import zombies
from tests.pipelines.conftest import PROJECT


def test_a_run_that_lives_is_heard_twice_before_it_is_taken_for_dead() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["prefect"]
    assert settings["flows"]["heartbeat_frequency"] == zombies.HEARTBEAT >= 30  # Prefect takes no less
    assert 2 * zombies.HEARTBEAT < zombies.SILENCE <= 100  # found within two minutes, looking every few seconds


def call(environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "pipelines.zombies"], cwd=PROJECT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_without_a_server_it_says_so(environment: dict[str, str]) -> None:
    for url, words in (
        ("", "no Prefect server is named"),
        ("http://127.0.0.1:1/api", "no Prefect server answers at http://127.0.0.1:1/api"),
    ):
        code, said = call(environment | {"PREFECT_API_URL": url})
        assert code == 2 and said.startswith(f"error: {words}") and said.count("\n") == 1, said


@pytest.mark.slow
def test_it_is_made_once_and_brought_up_to_date(environment: dict[str, str], server: dict[str, str]) -> None:
    def automations(method: str = "POST", path: str = "filter", content: Any = None) -> Any:
        url = f"{server['PREFECT_API_URL']}/automations/{path}"
        request = Request(url, json.dumps(content or {}).encode(), {"Content-Type": "application/json"}, method=method)
        return json.loads(urlopen(request).read() or b"null")

    assert call(environment | server) == (0, "")
    made = automations()
    assert len(made) == 2
    assert call(environment | server) == (0, "")
    assert automations() == made

    changed = {key: made[0][key] for key in ("name", "description", "enabled", "trigger", "actions")}
    changed["trigger"] = changed["trigger"] | {"within": 1000}
    automations("PUT", made[0]["id"], changed)
    automations(path="", content=changed)
    assert len(automations()) == 3
    assert call(environment | server) == (0, "")
    assert [one["trigger"]["within"] for one in automations()] == [zombies.SILENCE] * 2
