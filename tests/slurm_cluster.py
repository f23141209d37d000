"""A Slurm cluster of two nodes on this machine, as tests run it: munge, a controller and two node daemons in a folder of their own.

Each node claims four processors and two GPUs, which are copies of /dev/null: Slurm hands them out like real ones. Two partitions, `low` and
`high`; a job of `high` takes the place of those of `low`, which are queued again.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch")
NODES = ("n1", "n2")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
# Ranks meet at a port that is made of the number, and several clusters of tests share this machine.
FirstJobId={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# A requeued job waits as long as a credential lives.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=16000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=16000 Gres=gpu:2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=9
"""


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a fresh cluster. Skips the test where Slurm is not installed or this is not root."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    missing = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    if missing:
        pytest.skip(f"there is no {missing[0]} here: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a cluster of one's own is started by root alone")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp")))  # a socket's path is short
        folder.chmod(0o755)
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir()
        for number in range(2):
            os.mknod(folder / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # another /dev/null
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/nvidia[0-1]\n")
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=folder, host=socket.gethostname().split(".")[0], ports=_free_ports(3)))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        environment |= {"SLURM_CONF": str(config), "PATH": path}

        def daemon(*command: str) -> None:
            with (folder / f"{len(list(folder.glob('*.out')))}-{command[0]}.out").open("wb") as output:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.callback(_end, process)

        key = f"--{'keyfile'}={folder}/munge.key"
        subprocess.run(["mungekey", "--create", key], env=environment, check=True)
        munge = {
            "socket": "munge.socket",
            "key-file": "munge.key",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
            "log-file": "munge.log",
        }
        daemon("munged", "--foreground", *(f"--{option}={folder}/{name}" for option, name in munge.items()))
        _wait(folder, (folder / "munge.socket").exists)
        daemon("slurmctld", "-D", "-f", str(config))
        for node in NODES:
            daemon("slurmd", "-D", "-N", node, "-f", str(config))

        def idle() -> bool:
            shown = subprocess.run(
                ["sinfo", "--noheader", "--partition=low", "--format=%T %D"], env=environment, capture_output=True, text=True
            )
            return shown.stdout.split() == ["idle", "2"]

        _wait(folder, idle)
        stack.callback(subprocess.run, ["scancel", "--signal=KILL", f"--user={os.geteuid()}"], env=environment)
        yield environment


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in found:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in found]


def _wait(folder: Path, condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in folder.glob("*.[lo][ou][gt]"))
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon, and what it has started."""
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in started:
        if child.is_running():
            child.kill()
