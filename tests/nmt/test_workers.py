"""Work in real processes."""

import os
import signal
from collections.abc import Iterator

import pytest

from nmt.errors import UserError
from nmt.workers import AHEAD, ordered, worker_count


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


@pytest.mark.parametrize("workers", [1, 4])
def test_no_task_and_one_task_need_no_other_process(workers: int) -> None:
    assert list(ordered(square, [], workers)) == []
    assert list(ordered(square, [3], workers)) == [(9, os.getpid())]


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
