"""`python -m pipelines.repro [TARGET ...]`: what `dvc repro` does, as a Prefect flow with one task per DVC stage.

It ends with the same dvc.lock. Prefect adds the view of a run (states, times, logs, the metrics as an artifact), the rest
of the pipeline where a stage fails, and a stop that lets every stage save its work: on Ctrl-C, SIGTERM, Prefect's
cancellation, and when the flow itself is killed. DVC stays the only cache and the only owner of the graph, so no task caches or stores
anything.

Exit codes: 0 done or nothing to do, 1 a stage failed, 2 the parameters or the request are wrong (or what `stages.check`
says), 130 stopped by Ctrl-C, 143 by SIGTERM. Every stage's output is kept in .scratch/logs/<start>-<flow run>/<stage>.log.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# Read by Prefect when it is imported; what the user has set stays.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")  # of 20, which a small machine needs at the first start

import psutil  # noqa: E402
from prefect import State, flow, get_client, get_run_logger, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.futures import PrefectFuture  # noqa: E402
from prefect.runtime import flow_run  # noqa: E402
from prefect.states import Cancelled, Completed, Failed  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402

from pipelines import artifacts, dvc, guard, slots  # noqa: E402

# A training takes the whole machine, and two at once take far more than twice as long. One after the other, in DVC's order, also
# makes a first dvc.lock the same to the byte (DVC appends each stage when it ends). Where there are slots, `slots.place` has them wait.
AT_ONCE = None if slots.SLOTS or slots.ELSEWHERE else 1
GRACE = guard.GRACE_SECONDS
LAST_LINES = 15  # of a failed stage's output, shown at the end
LOGS = Path(".scratch/logs")
NOTHING_TO_DO = "nothing to do"
UP_TO_DATE = f"{NOTHING_TO_DO}: every stage is up to date with dvc.lock"


class CheckFailed(Exception):
    """`stages.check` found something wrong. The message is what it said, `code` its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@cache
def check(folder: Path = Path()) -> None:
    """Have the parameters of the workspace `folder` checked, once per process. Raises CheckFailed."""
    done = subprocess.run([sys.executable, "-m", "stages.check"], cwd=folder, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise CheckFailed(done.stderr.strip(), done.returncode)


def may_go_on(task: object, run: object, state: State[None]) -> bool:
    """Whether a run of a stage is tried again: where DVC was kept out or the stage was stopped from outside, never where it failed."""
    return state.name in ("Busy", "Preempted")


@task(
    task_run_name="{step.stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[5, 15, 60],
    retry_condition_fn=may_go_on,
)
def run_stage(step: dvc.Step, log: Path, children: dvc.Children, folder: Path = Path(), held: tuple[int, ...] = ()) -> State[None]:
    """Run one stage of the workspace `folder` (DVC skips it where it is up to date after all) and follow its output into Prefect's log.

    It waits for a place where it needs one (pipelines/slots.py). Its `dvc` has the open files `held`.
    """
    logger, stage, progress = get_run_logger(), step.stage, artifacts.Progress(step.stage)
    with slots.place(step.gpu, step.job, lambda: children.stopped, logger.info) as place:
        child = None if place is None else children.start(stage, log, folder, (*held, *place.held), place.environment)
        if child is None:
            return Cancelled(message=f"{stage} was not started: the flow is being stopped")
        for line in filter(str.strip, dvc.follow(child, log)):
            logger.info("%s", line)
            progress.look(line)
    if child.returncode == 0:
        artifacts.leave_outputs(stage, step.outputs, lasting=folder == Path())
        return Completed()
    if children.stopped:
        return Cancelled(message=f"{stage} was stopped, its output is in {log}")
    last = "\n".join(dvc.last_lines(log, LAST_LINES))
    if reason := dvc.busy(last):
        return Failed(name="Busy", message=reason)
    if dvc.preempted(last):
        return Failed(name="Preempted", message=f"{stage} was stopped from outside, its output is in {log}")
    return Failed(message=f"{stage} failed, its output is in {log}")


@flow(
    name="reproduce",
    task_runner=ThreadPoolTaskRunner(max_workers=AT_ONCE),  # type: ignore[arg-type]  # Prefect's own types do not fit each other
    persist_result=False,
)
def reproduce(targets: list[str] | None = None) -> State[None]:
    """Bring `targets` (stages such as `train` or `train@demo-tiny`; none: all of dvc.yaml) and what they are made from up to date.

    Fails where a stage fails, once all that do not depend on it are done.
    """
    try:
        check()
        slots.check()
        with stopped_with_the_flow() as children:
            return plan_and_run(targets or [], children)
    except (CheckFailed, slots.SlotError, dvc.DvcError) as error:
        return Failed(message=str(error))


_planned: dict[tuple[Path | str, ...], list[dvc.Step]] = {}  # what the command has asked already, for its flow


def plan_and_run(targets: Sequence[str], children: dvc.Children, folder: Path = Path(), held: tuple[int, ...] = ()) -> State[None]:
    """In a flow, run what is not up to date in the workspace `folder`, a task for each stage, and leave the metrics as an artifact.

    Each `dvc` has the open files `held`. Raises DvcError as `dvc.plan` does.
    """
    logger = get_run_logger()
    steps = _planned.pop((folder, *targets), None) or dvc.plan(targets, folder)
    if not steps:
        return Completed(message=UP_TO_DATE)
    output = LOGS / f"{flow_run.get_scheduled_start_time():%Y%m%dT%H%M%S}-{flow_run.get_name()}"
    logs = {step.stage: output / f"{step.stage.replace('/', '_')}.log" for step in steps}
    logger.info("stages to run: %s (their output: %s)", ", ".join(logs), output)
    tasks: dict[str, PrefectFuture[Any]] = {}
    for step in steps:
        upstream = [tasks[stage] for stage in step.after]
        named = run_stage.with_options(name=step.stage)  # by which a task is known before it runs
        tasks[step.stage] = named.submit(step, logs[step.stage], children, folder, held, wait_for=upstream, return_state=False)
    for future in tasks.values():
        future.wait()
    states = {stage: future.state for stage, future in tasks.items()}
    failed = [stage for stage, state in states.items() if state.is_final() and not state.is_completed()]
    if failed:
        for stage in failed:
            last = dvc.last_lines(logs[stage], LAST_LINES) if logs[stage].exists() else []
            logger.error("\n    ".join([str(states[stage].message), *last]))
        not_run = [stage for stage, state in states.items() if not state.is_final()]
        return Failed(message=f"failed: {', '.join(failed)}" + (f"; not run: {', '.join(not_run)}" if not_run else ""))
    artifacts.leave_metrics(folder)
    return Completed(message=f"{len(steps)} stages are up to date")


@contextmanager
def stopped_with_the_flow() -> Iterator[dvc.Children]:
    """The stages started in this context are stopped, with time to save their work, when anything breaks it off."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited from a script's `&`; the stages would inherit it in turn
        signal.signal(signal.SIGINT, signal.default_int_handler)
    children = dvc.Children()
    try:
        yield children
    except BaseException:
        get_run_logger().warning("stopping: a running stage has %.0f seconds to save its work", GRACE)
        with deaf():  # a second Ctrl-C must not cost a checkpoint
            children.stop(GRACE)
        raise
    finally:
        children.close()


@contextmanager
def deaf() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM, which reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def start_server() -> None:
    """Start Prefect's temporary server where the user has no other, so that a Ctrl-C does not reach it.

    Being in the terminal's process group it would end at once, and the flow would try for minutes to report that it was
    stopped. It inherits the signals that are blocked here; a Ctrl-C is therefore heard once it has started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with get_client(sync_client=True):
            pass
        for server in psutil.Process().children():
            _end_with_us(server.pid)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


_pipes: list[subprocess.Popen[bytes]] = []  # whose other ends are open for as long as this process lives


def _end_with_us(pid: int) -> None:
    """Have a process end when this one does, by SIGKILL too: a shell waits until nobody holds the other end of its pipe."""
    command = ["sh", "-c", f"cat; kill {pid} 2> /dev/null"]
    _pipes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True))


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.repro", description="Reproduce the pipeline with Prefect, as `dvc repro` does."
    )
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="a stage (train, train@demo-tiny), with all it is made from; none: all"
    )
    targets = parser.parse_args().targets
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # also called by Prefect when it has dealt with the signal
    try:
        check()
        steps = dvc.plan(targets)
        if not steps:  # asked before Prefect starts a server, which takes ten seconds
            print(UP_TO_DATE)
            return 0
        _planned[Path(), *targets] = steps
        start_server()
        state = reproduce(targets, return_state=True)
    except CheckFailed as error:
        print(error, file=sys.stderr)
        return error.code
    except dvc.DvcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: the next call goes on from here", file=sys.stderr)
        return 130
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main())
