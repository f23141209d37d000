"""What a flow costs beside `dvc repro`: the same stages, which do nothing, both ways in turn, with a Prefect server that runs.

python benchmarks/flow.py [--stages 9] [--rounds 3]

Prints the seconds of each, and what the flow adds a stage in the best round. On a busy machine the processor time says more. It counts all that a flow does: the start of the
process, the plan, a task and a `dvc` for each stage, the metrics. The server is started here, on a free port, and ended.
"""

import argparse
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

PROJECT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="What a flow costs beside `dvc repro`.")
    parser.add_argument("--stages", type=int, default=9, help="a chain of so many (9, as the pipeline has)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the server is ended
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PREFECT_HOME": str(top / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(top / "dvc"),
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        server = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while not answers(environment["PREFECT_API_URL"]):
                if server.poll() is not None:
                    sys.exit("error: the Prefect server does not start")
                time.sleep(0.2)
            measure(top, environment, options.stages, options.rounds)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, TimeoutError):
        return False


def measure(top: Path, environment: dict[str, str], stages: int, rounds: int) -> None:
    commands = {"dvc repro": ["dvc", "repro"], "flow": ["pipelines.repro"]}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            folder = workspace(top / f"{name.replace(' ', '-')}-{turn}", environment, stages)
            times[name].append(seconds(command, folder, environment))
            wall, processor = times[name][-1]
            print(f"{name}: {stages} stages in {wall:.2f} s, {processor:.2f} s of processor time", flush=True)
    bare, flow = ([min(column) for column in zip(*times[name], strict=True)] for name in commands)
    wall, processor = ((ours - theirs) / stages for ours, theirs in zip(flow, bare, strict=True))
    print(f"best of {rounds}: the flow adds {wall:.2f} s a stage, {processor:.2f} s of processor time")


def workspace(folder: Path, environment: dict[str, str], stages: int) -> Path:
    """A pipeline of stages that each copy a file."""
    (folder / "stages").mkdir(parents=True)
    (folder / "stages" / "check.py").write_text("")
    shutil.copytree(PROJECT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "0").write_text(str(folder))  # so that no run is in the cache of another
    text = "".join(f"  s{n}:\n    cmd: cp {n - 1} {n}\n    deps: ['{n - 1}']\n    outs: ['{n}']\n" for n in range(1, stages + 1))
    (folder / "dvc.yaml").write_text(f"stages:\n{text}")
    subprocess.run(["git", "init", "-q"], cwd=folder, env=environment, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, env=environment, check=True)
    return folder


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """How long the command takes, and how long it and all it starts have a processor."""
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


if __name__ == "__main__":
    main()
