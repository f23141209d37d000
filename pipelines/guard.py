"""Runs a command, and stops it and all that it started when whoever asked for it is gone.

The caller holds the other end of file 0, a socket or a pipe. When the caller lets go of it or dies, however it does (SIGKILL, too little
memory), the guard ends the work in the way of a Ctrl-C: the command's group gets SIGINT once, but not the command itself. It is `dvc`,
which records a stage that has just ended, or sees it fail, and gives its locks back. What is left after GRACE_SECONDS, or the seconds that
the caller has written, is killed. The same happens to what a command leaves behind that is killed. The guard ends when nothing is left.

    flow ─ guard ─ dvc ─ stage ─ its processes            any of them may be killed: those to the right of it save their work and end
"""

import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 25.0  # to save a checkpoint: Prefect's runner kills a cancelled flow after 30
POLL = 0.1
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36  # of Linux' prctl


class Guard:
    """The command while it runs."""

    def __init__(self, command: Callable[[], int]) -> None:
        """Start `command` in a process and a session of its own, whose exit code it returns."""
        self.signalled = False
        for number in SIGNALS:
            signal.signal(number, self._note)
        _prctl(PR_SET_NAME, b"guard")
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # what loses its parent becomes ours, so that nothing is lost from sight
        self.me = psutil.Process()
        self.arguments = self.me.cmdline()
        pid = os.fork()
        if pid == 0:
            self._run(command)
        self.command = psutil.Process(pid)
        self.told: set[psutil.Process] = set()

    def _run(self, command: Callable[[], int]) -> NoReturn:
        """In the command's process: it dies with the guard. Its stages end with it by themselves, and save their work."""
        code = 1
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == self.me.pid:
                _prctl(PR_SET_NAME, b"dvc")
                os.setsid()
                with open(os.devnull) as nothing:
                    os.dup2(nothing.fileno(), 0)
                for number in SIGNALS:
                    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
                code = command()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def watch(self) -> int:
        """Wait until nothing is left. Returns the exit code."""
        code, deadline = 0, None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == self.command.pid:
                ended = os.waitstatus_to_exitcode(status)
                code = ended if ended >= 0 else 128 - ended
            if pid:
                continue
            if deadline is None:
                grace = self._asked() if self.command.is_running() else GRACE_SECONDS
                deadline = None if grace is None else time.monotonic() + grace
            else:
                time.sleep(POLL)
            if deadline is not None:
                self._stop(time.monotonic() > deadline)

    def _asked(self) -> float | None:
        """Look for a moment whether the command is to stop; if so, within how many seconds."""
        if select.select([0], [], [], POLL)[0]:
            return float(os.read(0, 100) or GRACE_SECONDS)
        return GRACE_SECONDS if self.signalled else None

    def _stop(self, at_once: bool) -> None:
        """Tell what runs to save its work and end, once, or kill it."""
        for process in self.me.children(recursive=True):
            try:
                if at_once:
                    process.kill()
                elif process != self.command and process not in self.told and os.getpgid(process.pid) == self.command.pid:
                    if process.cmdline() == self.arguments:
                        continue  # the command has just forked: what it forked for is not there yet, and would not hear
                    self.told.add(process)
                    process.send_signal(signal.SIGINT)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue  # it has ended meanwhile

    def _note(self, number: int, frame: object) -> None:
        self.signalled = True


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value if isinstance(value, bytes) else int(value), 0, 0, 0)
