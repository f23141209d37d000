"""What a flow costs beside `dvc repro`: the same stages, which do nothing, both ways in turn, with a Prefect server that runs.

    python benchmarks/flow.py [--rounds 3]

A chain of 2 stages and one of 8, so that what a flow costs at all (its process, the plan, the metrics) is told from what each stage adds (a
task, a `dvc` of its own). Prints both after each round, in seconds, from the best ones so far. The server is started here, on a free port,
and ended.
"""

import argparse
import os
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

SHORT, LONG = 2, 8  # stages
COMMANDS = {"dvc repro": ["dvc", "repro"], "flow": ["pipelines.repro"]}
PROJECT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="What a flow costs beside `dvc repro`.")
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
            measure(top, environment, options.rounds)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, TimeoutError):
        return False


def measure(top: Path, environment: dict[str, str], rounds: int) -> None:
    best: dict[tuple[str, int], float] = {}
    for turn in range(rounds):
        for stages in (SHORT, LONG):
            for name, command in COMMANDS.items():
                folder = workspace(top / f"{name.replace(' ', '-')}-{stages}-{turn}", environment, stages)
                found = seconds(command, folder, environment)
                print(f"{name}, {stages} stages: {found:.2f} s", flush=True)
                best[name, stages] = min(found, best.get((name, stages), found))
        more = {stages: best["flow", stages] - best["dvc repro", stages] for stages in (SHORT, LONG)}
        each = (more[LONG] - more[SHORT]) / (LONG - SHORT)
        print(f"round {turn + 1}: a flow adds {more[SHORT] - SHORT * each:.2f} seconds, and {each:.2f} a stage", flush=True)


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


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """How long the command takes."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
