"""Work in real processes: results come in the order of the tasks, errors come through, and no worker outlives its parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from nmt import workers
from nmt.errors import UserError
from nmt.workers import AHEAD, ordered, worker_count
from tests.pipelines.toy import wait_until


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def fail(number: int) -> int:
    if number == 3:
        raise UserError("the third")
    return number


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_one_worker_is_this_process_and_takes_the_tasks_one_by_one() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    found = ordered(square, tasks(), 1)
    assert [next(found), next(found)] == [(0, os.getpid()), (1, os.getpid())] and len(taken) == 2


@pytest.mark.parametrize("count", [1, 4])
def test_no_task_and_one_task_need_no_other_process(count: int) -> None:
    assert list(ordered(square, [], count)) == []
    assert list(ordered(square, [3], count)) == [(9, os.getpid())]


@pytest.mark.slow
@pytest.mark.essential
def test_processes_give_the_results_in_the_order_of_the_tasks_and_hold_few_of_them() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = []
    for result, process in ordered(square, tasks(), 2):
        results.append(result)
        assert process != os.getpid() and len(taken) <= len(results) - 1 + 2 * AHEAD
    assert results == [number * number for number in range(100)]


@pytest.mark.slow
def test_what_a_task_raises_is_raised_and_a_killed_worker_is_one_sentence() -> None:
    found = ordered(fail, range(9), 2)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match="^the third$"):
        next(found)
    with pytest.raises(UserError, match="one of 2 workers was ended from outside, .*: lower hardware.workers"):
        list(ordered(die, range(9), 2))


def test_auto_is_a_worker_for_each_core() -> None:
    assert worker_count("auto") == len(os.sched_getaffinity(0)) and worker_count(3) == 3


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_cores", lambda: 2)


@pytest.mark.slow
@pytest.mark.essential
def test_results_stand_in_the_order_of_the_tasks_and_other_processes_found_them(two_cores: None) -> None:
    seen: list[int] = []
    assert workers.spread([partial(pow, 2, n) for n in range(20)], lambda: seen.append(1)) == [2**n for n in range(20)]
    assert len(seen) == 20
    assert os.getpid() not in workers.spread([os.getpid, os.getpid])
    assert workers.spread([os.getpid]) == [os.getpid()]  # one alone is not worth a process
    assert workers.spread([]) == []


@pytest.mark.slow
def test_what_a_task_raises_is_raised_here_and_nothing_is_left_running(two_cores: None) -> None:
    with pytest.raises(ZeroDivisionError):
        workers.spread([partial(divmod, 1, n) for n in (1, 0, 2)])
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import time; from functools import partial; from nmt import workers; workers._cores = lambda: 2\n"
        "if __name__ == '__main__': workers.spread([partial(time.sleep, 1)] * 60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: len(psutil.Process(parent.pid).children()) >= 2, "no workers")
    family = psutil.Process(parent.pid).children()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family), "a worker lives on", 20)


@pytest.mark.slow
def test_ctrl_c_ends_all_with_one_traceback() -> None:
    code = (
        "import time; from functools import partial; from nmt import workers; workers._cores = lambda: 2\n"
        "if __name__ == '__main__': workers.spread([partial(time.sleep, 1)] * 60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(psutil.Process(parent.pid).children()) >= 2, "no workers")
    time.sleep(1)  # until they are at work
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode != 0 and errors.count("Traceback") == 1
