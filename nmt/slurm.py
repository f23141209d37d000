"""Has Slurm run the processes of one training, as a job that is known by its name.

The name stands for the work: who asks for the same work again follows the job that is there, so a killed caller loses nothing. All else is
Slurm's. It lets no second job of a name begin before the first has ended (`singleton`), and starts a job anew that lost a node or gave way
to another one (`requeue`). Near the end of its time the job saves its work and queues itself again.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import UserError
from nmt.hardware import SlurmConfig

SAVE_SECONDS = 120  # before the end of a job's time, at which it is told to save
LOOK_SECONDS = 0.2  # between two looks at the log
ASK_SECONDS = 0.5, 10.0  # between two questions to Slurm: a tenth of the time since something changed, within these
LAST_LINES = 15  # of the log of a job that failed
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "FORGOTTEN"}

# Each task is a rank, described as torchrun would. The first node of a job is the one that runs this script.
SCRIPT = """\
#!/bin/bash
export PYTHONUNBUFFERED=1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
trap 'ending=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
srun --kill-on-bad-exit=1 --cpu-bind=none {options} bash -c '
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
  export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR
  exec "$@"' rank {command} &
wait $!
code=$?
if [ "$ending" ]; then
  wait $!
  code=$?
  [ $code = 0 ] || scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""


class SlurmError(UserError):
    """One of Slurm's commands failed. The message has its words."""


def chosen() -> bool:
    """Whether LAUNCHER in the environment asks for Slurm."""
    return os.environ.get("LAUNCHER") == "slurm"


def check_same(name: str) -> None:
    """Raise UserError in a job that was queued for other work than `name`: what it reads was edited while it waited."""
    if os.environ.get("SLURM_JOB_NAME") != name:
        raise UserError(
            f"parameters, data or code are not those for which Slurm job {os.environ.get('SLURM_JOB_ID')} was queued: "
            "run the same command again for the new ones"
        )


@dataclass(frozen=True)
class Job:
    """A job of Slurm and the file that all its processes write to."""

    number: int
    log: Path

    def state(self) -> tuple[str, str]:
        """Slurm's word for the state, and its reason. FORGOTTEN for a job that ended too long ago to be known. Raises SlurmError."""
        try:
            shown = _ask("squeue", "--noheader", "--states=all", f"--jobs={self.number}", "--format=%T|%r").strip()
        except SlurmError as error:
            if "Invalid job id" not in str(error):
                raise
            shown = ""
        state, _, reason = (shown or "FORGOTTEN|").partition("|")
        return state, "" if reason == "None" else reason

    def follow(self, signals: Sequence[int]) -> None:
        """Copy the log to stdout until the job ends. A job that was already ending is waited for, whatever becomes of it.

        With one in `signals`, now or later, the job is cancelled and has Slurm's time to save its work; exits with 128 + that signal.
        Raises UserError, with the last lines of the log, when the job fails or is cancelled by others.
        """
        copied, cancelled = 0, False
        first = state = shown = ""
        changed = asked = time.monotonic()
        while state not in ENDED:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if signals and not cancelled:
                self._cancel()
                cancelled, changed = True, now
            line = shown
            if now >= asked:
                try:
                    state, reason = self.state()
                    first = first or state
                    line = f"Slurm job {self.number}: {state.lower()}{reason and f' ({reason})'}"
                except SlurmError as error:  # which says nothing about the job
                    line = f"Slurm job {self.number}: {error}"
                asked = now + min(max((now - changed) / 10, ASK_SECONDS[0]), ASK_SECONDS[1])
            copied = self._copy(copied)
            if line != shown:
                print(line, flush=True)
                shown, changed = line, now
        if cancelled:
            sys.exit(128 + signals[0])
        if state not in ("COMPLETED", "FORGOTTEN") and first != "COMPLETING":
            raise UserError(f"Slurm job {self.number} ended as {state}{reason and f' ({reason})'}; {self._last()}")

    def _copy(self, start: int) -> int:
        """Copy what stands in the log from byte `start` on. Returns where to go on."""
        if not self.log.exists():
            return start
        with self.log.open("rb") as log:
            log.seek(start)
            new = log.read()
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()
        return start + len(new)

    def _last(self) -> str:
        if not self.log.exists():
            return f"it wrote no {self.log}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return "\n    ".join([f"the last lines of {self.log}:", *lines])

    def _cancel(self) -> None:
        try:
            _ask("scancel", str(self.number))
        except SlurmError as error:
            raise UserError(f"Slurm job {self.number} goes on, for it could not be cancelled ({error}): scancel {self.number}") from None


def find(name: str, folder: Path) -> Job | None:
    """This user's job of this name that waits, runs or is ending, the oldest of several; its log lies in `folder`. Raises SlurmError."""
    numbers = _ask("squeue", "--noheader", f"--user={os.getuid()}", f"--name={name}", "--format=%A").split()
    return _job(min(map(int, numbers)), folder) if numbers else None


def submit(name: str, arguments: Sequence[str], request: SlurmConfig, processes: int, folder: Path) -> Job:
    """Queue `python -m arguments` as a job called `name`, with so many processes on each node, and the log in `folder`.

    Raises SlurmError when Slurm refuses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wishes = {
        "gpus-per-node": request.gpus_per_node or None,
        "cpus-per-task": request.cpus_per_process,
        "mem": request.memory,
        "partition": request.partition,
        "time": request.time,
    }
    options = [
        *request.options,
        *(f"--{option}={value}" for option, value in wishes.items() if value is not None),
        f"--nodes={request.nodes}",
        f"--ntasks-per-node={processes}",
        f"--job-name={name}",
        f"--output={str(folder.absolute()).replace('%', '%%')}/slurm-%j.log",
        "--open-mode=append",
        "--dependency=singleton",
        "--requeue",
        f"--signal=B:USR1@{SAVE_SECONDS}",
        "--export=ALL",
    ]
    # srun does not take this one over from the job.
    of_srun = "" if request.cpus_per_process is None else f"--cpus-per-task={request.cpus_per_process}"
    script = SCRIPT.format(options=of_srun, command=shlex.join([sys.executable, "-m", *arguments]))
    return _job(int(_ask("sbatch", "--parsable", *options, script=script).split(";")[0]), folder)


def _job(number: int, folder: Path) -> Job:
    return Job(number, folder / f"slurm-{number}.log")


def _ask(program: str, *arguments: str, script: str = "") -> str:
    """What one of Slurm's commands prints. Raises SlurmError."""
    # Within a job, its variables would be taken for wishes. Ctrl-C is not for these commands, hence a session of their own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    try:
        done = subprocess.run([program, *arguments], input=script, env=environment, capture_output=True, text=True, start_new_session=True)
    except FileNotFoundError:
        raise UserError(
            f"LAUNCHER is slurm, but there is no {program} here: use a machine from which jobs are submitted, or unset LAUNCHER"
        ) from None
    if done.returncode:
        raise SlurmError(f"{program} failed: {'; '.join(done.stderr.split(chr(10))).strip('; ') or f'exit code {done.returncode}'}")
    return done.stdout
