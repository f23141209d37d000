"""`python -m pipelines.zombies`: has the Prefect server mark runs as Crashed whose process, runner or machine is gone.

A flow tells the server every HEARTBEAT seconds that it lives. An automation of the server's own takes one for dead that has not been
heard for SILENCE seconds, of which it must miss two beats, and that has not ended. (Prefect's default, a beat in 180 seconds, does not go
with it: pyproject.toml sets HEARTBEAT for flows that start in the project's folder, elsewhere PREFECT_FLOWS_HEARTBEAT_FREQUENCY does.)
Another takes a run for dead that a runner has taken up, Pending, and that has not begun after as long: the runner was lost in between.

`pipelines.serve` calls it; only for a work pool it is called by hand. Twice does no harm. Exit codes: 0 done, 2 there is no such server.
"""

import sys
from datetime import timedelta

import pipelines.repro  # noqa: F401  # sets Prefect up, so before it

from prefect import get_client  # isort: skip
from prefect.client.schemas.objects import StateType  # isort: skip
from prefect.events.actions import ChangeFlowRunState  # isort: skip
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture  # isort: skip
from prefect.settings import get_current_settings  # isort: skip

HEARTBEAT = 30  # seconds, the least that Prefect takes
SILENCE = 90
BEAT, PENDING, RUNNING = (f"prefect.flow-run.{name}" for name in ("heartbeat", "Pending", "Running"))
ENDS = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "AwaitingRetry")}


class NoServer(Exception):
    """No Prefect server answers. The message is one sentence."""


def automations() -> list[AutomationCore]:
    """A run is Crashed whose last sign of life is SILENCE seconds old, or that was taken up as long ago and has not begun."""
    gone = "its process or machine is gone, or cut off. What it saved is gone on from."
    return [
        _crashed("nmt-pipeline: crashed runs", BEAT, {BEAT, *ENDS}, f"not heard for {SILENCE} seconds: {gone}"),
        _crashed("nmt-pipeline: runs that never began", PENDING, {RUNNING, *ENDS}, f"not begun after {SILENCE} seconds: {gone}"),
    ]


def _crashed(name: str, after: str, expect: set[str], message: str) -> AutomationCore:
    """Marks a run that `after` has happened to, and in SILENCE seconds nothing of `expect`."""
    return AutomationCore(
        name=name,
        description=f"A run of which nothing is heard for {SILENCE} seconds is dead. Made by `python -m pipelines.zombies`.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={after},
            expect=expect,
            threshold=1,
            within=timedelta(seconds=SILENCE),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
    )


def watch() -> None:
    """Make the automations on the server, or bring those that are there up to date. Raises NoServer."""
    url = get_current_settings().api.url
    if not url:
        raise NoServer("no Prefect server is named: `prefect server start` starts one, PREFECT_API_URL says where it is")
    with get_client(sync_client=True) as client:
        if error := client.api_healthcheck():
            ending = "" if url.rstrip("/").endswith("/api") else ", which should end in /api"
            raise NoServer(f"no Prefect server answers at {url}{ending}: {' '.join(str(error).split())[:200]}")
        for wanted in automations():
            found = client.read_automations_by_name(wanted.name)
            if not found:
                client.create_automation(wanted)
            elif AutomationCore.model_validate(found[0].model_dump(include=set(AutomationCore.model_fields))) != wanted:
                client.update_automation(found[0].id, wanted)
            for other in found[1:]:
                client.delete_automation(other.id)


def main() -> int:
    """The command. Returns its exit code."""
    try:
        watch()
    except NoServer as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"runs that are not heard for {SILENCE} seconds are marked as Crashed by {get_current_settings().api.url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
