"""Results come in the order of the tasks, errors come through, and no worker outlives its parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from nmt import workers
from tests.pipelines.toy import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_cores", lambda: 2)


@pytest.mark.essential
def test_results_stand_in_the_order_of_the_tasks_and_other_processes_found_them() -> None:
    seen: list[int] = []
    assert workers.spread([partial(pow, 2, n) for n in range(20)], lambda: seen.append(1)) == [2**n for n in range(20)]
    assert len(seen) == 20
    assert os.getpid() not in workers.spread([os.getpid, os.getpid])
    assert workers.spread([os.getpid]) == [os.getpid()]  # one alone is not worth a process
    assert workers.spread([]) == []


def test_what_a_task_raises_is_raised_here_and_nothing_is_left_running() -> None:
    with pytest.raises(ZeroDivisionError):
        workers.spread([partial(divmod, 1, n) for n in (1, 0, 2)])
    assert multiprocessing.active_children() == []


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
