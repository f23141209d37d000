"""Spreads independent work over processes. A worker ends when its parent does, however that ends: it reads from a pipe that then closes."""

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

T = TypeVar("T")
AT_MOST = 8  # processes; each holds its own copy of what it works on


def spread(tasks: Sequence[Callable[[], T]], report: Callable[[], None] = lambda: None) -> list[T]:
    """The results of all `tasks`, in their order, computed by as many processes as there are cores to use; `report` is called after each.

    Give the longest tasks first. A task and its result travel through a pipe, so they must be picklable (functools.partial of functions
    of modules). What a task raises is raised here, and ends all.
    """
    processes = min(_cores(), AT_MOST, len(tasks))
    if processes < 2:
        return [_reported(task(), report) for task in tasks]
    context = get_context("spawn")  # a fork would copy the threads' locks
    workers: dict[Connection, Any] = {}
    try:
        for _ in range(processes):
            here, there = context.Pipe()
            workers[here] = context.Process(target=_work, args=(there,), daemon=True)
            workers[here].start()
            there.close()
        results: dict[int, T] = {}
        waiting = iter(enumerate(tasks))
        for connection, numbered in zip(workers, waiting, strict=False):
            connection.send(numbered)
        while len(results) < len(tasks):
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                number, value, error = ready.recv()
                if error is not None:
                    raise error
                results[number] = value
                report()
                further = next(waiting, None)
                if further is not None:
                    ready.send(further)
        return [results[number] for number in range(len(tasks))]
    finally:
        for connection, process in workers.items():
            connection.close()
            process.terminate()
            process.join()


def _reported(result: T, report: Callable[[], None]) -> T:
    report()
    return result


def _work(connection: Connection) -> None:
    """Do one task after another until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this
    try:
        while True:
            number, task = connection.recv()
            try:
                connection.send((number, task(), None))
            except Exception as error:  # the parent raises it
                connection.send((number, None, error))
    except (EOFError, OSError):
        return


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
