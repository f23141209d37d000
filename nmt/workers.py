"""Work shared out over processes of this machine: results in the order of the tasks, few of them under way at a time.

ordered(encode, chunks, 4)    ->    encode(chunks[0]), encode(chunks[1]), …       whoever computed them
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Literal, TypeVar

from nmt.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
PR_SET_PDEATHSIG = 1  # of Linux' prctl
AHEAD = 2  # tasks under way or waiting, for each worker
AT_MOST = 8  # processes of `spread`; each holds its own copy of what it works on


def worker_count(workers: int | Literal["auto"]) -> int:
    """The processes that `hardware.workers` asks for: auto is one for each core that this process may use."""
    return _cores() if workers == "auto" else workers


def ordered(function: Callable[[T], R], tasks: Iterable[T], workers: int) -> Iterator[R]:
    """`function` of each task, in the order of `tasks`, computed by so many processes; one worker, or one task, is for this process itself.

    `function` is sent to each process once, so it may carry much; tasks and results should be small. Memory does not grow with the
    number of tasks. What `function` raises is raised here. Raises UserError when a worker is killed from outside.
    """
    coming = iter(tasks)
    begun = list(islice(coming, 2))
    if workers == 1 or len(begun) < 2:
        yield from map(function, chain(begun, coming))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of libraries hold
    pool = ProcessPoolExecutor(workers, context, _begin, (function, os.getpid()))
    pending: deque[Future[R]] = deque()
    try:
        for task in chain(begun, coming):
            pending.append(pool.submit(_call, task))
            if len(pending) == AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException as error:
        if isinstance(error, BrokenProcessPool):
            raise UserError(f"one of {workers} workers was ended from outside, mostly for want of memory: lower hardware.workers") from None
        for process in list(pool._processes.values()):
            process.terminate()  # what is under way is not waited for
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def spread(tasks: Sequence[Callable[[], T]], report: Callable[[], None] = lambda: None) -> list[T]:
    """The results of all `tasks`, in their order, computed by as many processes as there are cores to use; `report` is called for each.

    Give the longest tasks first. A task and its result travel through a pipe, so they must be picklable (functools.partial of functions
    of modules). What a task raises is raised here, and ends all.
    """
    results = []
    for result in ordered(_run, tasks, min(_cores(), AT_MOST)):
        results.append(result)
        report()
    return results


def _run(task: Callable[[], T]) -> T:
    return task()


_function: Callable[[Any], Any]


def _begin(function: Callable[[Any], Any], parent: int) -> None:
    """Prepare a worker: it leaves Ctrl-C to its parent and ends when that one does, however it does."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


def _call(task: Any) -> Any:
    return _function(task)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
