"""`python -m pipelines.serve [NAME ...]`: runs the deployments of prefect.yaml on this machine, when they are due or asked for.

It runs in the project's folder until it is stopped, each flow in a process of its own. On SIGTERM or Ctrl-C the flows are told, and have
time to save their work (a worker of a process pool would kill them unheard); schedules go on when it is started again. With GPU_SLOTS
(pipelines/slots.py) in its environment it has the server know how many slots there are.

Exit codes: 0 stopped, 2 prefect.yaml, the request or the server is wrong, for a reason that is printed.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipelines import slots, zombies  # they set Prefect up, so before it

from prefect import serve  # isort: skip
from prefect.client.schemas.objects import ConcurrencyLimitConfig  # isort: skip
from prefect.deployments.runner import RunnerDeployment  # isort: skip
from prefect.exceptions import PrefectException  # isort: skip
from prefect.flows import Flow, load_flow_from_entrypoint  # isort: skip
from prefect.schedules import Schedule  # isort: skip
from prefect.settings import get_current_settings  # isort: skip

DEPLOYMENTS = Path("prefect.yaml")
KEYS = {"name", "entrypoint", "description", "tags", "parameters", "schedules", "concurrency_limit"}


class ServeError(Exception):
    """The deployments cannot be run. The message is one sentence."""


def deployments(names: Sequence[str]) -> list[RunnerDeployment]:
    """Those of prefect.yaml that are named, all without names. Raises ServeError."""
    if not DEPLOYMENTS.exists():
        raise ServeError(f"there is no {DEPLOYMENTS} here: start it in the project's folder")
    entries = {entry["name"]: entry for entry in YAML(typ="safe", pure=True).load(DEPLOYMENTS.read_text(encoding="utf-8"))["deployments"]}
    if unknown := [name for name in names if name not in entries]:
        raise ServeError(f"{DEPLOYMENTS} has no deployment {', '.join(unknown)}: known are {', '.join(entries)}")
    return [_deployment(entry) for name, entry in entries.items() if not names or name in names]


def _deployment(entry: dict[str, Any]) -> RunnerDeployment:
    try:
        if unknown := set(entry) - KEYS:
            raise ValueError(f"unknown is {', '.join(sorted(unknown))}, known are {', '.join(sorted(KEYS))}")
        found: Flow[Any, Any] = load_flow_from_entrypoint(entry["entrypoint"])
        found.validate_parameters(entry.get("parameters", {}))
        limit = entry.get("concurrency_limit")
        return RunnerDeployment.from_entrypoint(
            entry["entrypoint"],
            entry["name"],
            description=entry.get("description"),
            tags=entry.get("tags"),
            parameters=entry.get("parameters"),
            schedules=[Schedule(**schedule) for schedule in entry.get("schedules", [])],
            concurrency_limit=None if limit is None else ConcurrencyLimitConfig(**limit),
        )
    except (PrefectException, KeyError, TypeError, ValueError, ImportError) as error:
        raise ServeError(f"{DEPLOYMENTS}, deployment {entry['name']}: {' '.join(str(error).split())}") from None


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.serve", description="Run the deployments of prefect.yaml on this machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of them; all without any")
    names = parser.parse_args().names
    try:
        if not get_current_settings().api.url:
            raise ServeError("no Prefect server is named: `prefect server start` starts one, PREFECT_API_URL says where it is")
        found = deployments(names)
        slots.make_limit()
        zombies.watch()
    except (ServeError, slots.SlotError, zombies.NoServer) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # On Ctrl-C Prefect's runner leaves at once, and nobody says how the flows end, which hear it too; on SIGTERM it waits for them.
    signal.signal(signal.SIGINT, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    serve(*found, pause_on_shutdown=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
