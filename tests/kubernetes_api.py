"""An HTTP server that answers as a Kubernetes API server does, as far as a TrainJob needs it, with processes of this machine as pods.

It is no cluster: it creates one pod a node as the Trainer would, starts its command in `/`, sends SIGTERM to it when the TrainJob is
deleted, and fails the TrainJob when a pod fails. What a real one refuses, it does not know.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ruamel.yaml import YAML

from tests.copy_task import PROJECT

TRAINJOBS = re.compile(r"/apis/trainer\.kubeflow\.org/v1alpha1/namespaces/(?P<namespace>[^/]+)/trainjobs(/(?P<name>[^/]+))?")
PODS = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods(/(?P<name>[^/]+)/log)?")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Pod:
    """A process, its log line by line with the time of each, and why it does not run yet."""

    def __init__(self, name: str, job: str, index: int) -> None:
        self.name, self.job, self.index, self.created = name, job, index, now()
        self.log: list[tuple[str, str]] = []
        self.process: subprocess.Popen[str] | None = None
        self.phase, self.conditions, self.waits = "Pending", [], None  # type: str, list[dict[str, str]], dict[str, str] | None

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.phase = "Running"
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        with process:
            assert process.stdout
            for line in process.stdout:
                self.log.append((now(), line.rstrip("\n")))
        self.phase = "Succeeded" if process.returncode == 0 else "Failed"

    def shown(self) -> dict[str, Any]:
        labels = {"jobset.sigs.k8s.io/jobset-name": self.job, "batch.kubernetes.io/job-completion-index": str(self.index)}
        status: dict[str, Any] = {"phase": self.phase, "conditions": self.conditions}
        if self.waits:
            state = {"waiting": self.waits}
            container = {"name": "node", "image": "nmt", "imageID": "", "ready": False, "restartCount": 0, "state": state}
            status["containerStatuses"] = [container]
        return {"metadata": {"name": self.name, "labels": labels, "creationTimestamp": self.created}, "status": status}


class Api:
    """The state of the cluster, for a test to look at and to change."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, list[Pod]] = {}
        self.requests: list[tuple[str, str]] = []  # method and path
        self.refused: dict[tuple[str, str], tuple[int, str]] = {}  # (method, what its path ends with): status and message
        self.created: list[dict[str, Any]] = []
        self.held = False  # pods find no node
        self.lock = threading.RLock()

    def create(self, namespace: str, job: dict[str, Any]) -> tuple[int, Any]:
        name = job["metadata"]["name"]
        if name in self.jobs:
            return 409, f'trainjobs.trainer.kubeflow.org "{name}" already exists'
        self.created.append(job)
        self.jobs[name] = {**job, "metadata": {**job["metadata"], "creationTimestamp": now()}, "status": {"conditions": []}}
        self.pods[name] = [Pod(f"{name}-node-0-{n}-{len(self.created)}", name, n) for n in range(job["spec"]["trainer"]["numNodes"])]
        if self.held:
            for pod in self.pods[name]:
                unschedulable = {"reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
                pod.conditions = [{"type": "PodScheduled", "status": "False", **unschedulable}]
        else:
            self.start(name)
        return 201, self.jobs[name]

    def start(self, name: str) -> None:
        """Start the pods of a TrainJob, as the Trainer describes nodes to torchrun."""
        trainer = self.jobs[name]["spec"]["trainer"]
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        for pod in self.pods[name]:
            environment = {
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "PYTHONPATH": str(PROJECT),
                "OMP_NUM_THREADS": "1",
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(pod.index),
                "PET_MASTER_ADDR": "127.0.0.1",
                "PET_MASTER_PORT": str(port),
            }
            pod.conditions = []
            pod.start([*trainer["command"], *trainer["args"]], environment | {each["name"]: each["value"] for each in trainer["env"]})

    def look(self) -> None:
        """What the Trainer's controller does: ended pods decide what becomes of their TrainJob."""
        for name, job in list(self.jobs.items()):
            pods = self.pods[name]
            over = all(pod.phase in ("Pending", "Succeeded", "Failed") for pod in pods)
            if job["metadata"].get("deletionTimestamp"):
                if over:
                    del self.jobs[name], self.pods[name]
            elif any(pod.phase == "Failed" for pod in pods) and over:
                self.condition(name, "Failed", "jobset failed due to one or more job failures")
            elif pods and all(pod.phase == "Succeeded" for pod in pods):
                self.condition(name, "Complete", "jobset completed successfully")

    def condition(self, name: str, kind: str, message: str) -> None:
        found = {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": now()}
        self.jobs[name]["status"]["conditions"] = [found]

    def delete(self, name: str) -> tuple[int, Any]:
        if name not in self.jobs:
            return 404, f'trainjobs.trainer.kubeflow.org "{name}" not found'
        self.jobs[name]["metadata"]["deletionTimestamp"] = now()
        for pod in self.pods[name]:
            if pod.process and pod.phase == "Running":
                os.kill(pod.process.pid, signal.SIGTERM)  # a container's first process alone gets it
        return 200, self.jobs[name]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """HTTP status, and an object, a message or a log."""
        with self.lock:
            self.look()
            self.requests.append((method, path))
            for (refused, end), (status, message) in self.refused.items():
                if method == refused and path.endswith(end):
                    return status, message
            if found := TRAINJOBS.fullmatch(path):
                name = found["name"]
                if method == "POST":
                    return self.create(found["namespace"], body)
                if method == "DELETE":
                    return self.delete(name)
                return (200, self.jobs[name]) if name in self.jobs else (404, f'trainjobs.trainer.kubeflow.org "{name}" not found')
            if (found := PODS.fullmatch(path)) and found["name"]:
                [pod] = [pod for pods in self.pods.values() for pod in pods if pod.name == found["name"]]
                lines = [(moment, line) for moment, line in pod.log][-int(query.get("tailLines", 1 << 30)) :]
                if "sinceSeconds" in query:
                    first = datetime.fromtimestamp(time.time() - int(query["sinceSeconds"]), UTC).isoformat()
                    lines = [(moment, line) for moment, line in lines if moment >= first]
                return 200, "".join(f"{moment} {line}\n" if query.get("timestamps") else f"{line}\n" for moment, line in lines)
            if found:
                wanted = query["labelSelector"].split("=")[1]
                return 200, {"kind": "PodList", "apiVersion": "v1", "items": [pod.shown() for pod in self.pods.get(wanted, [])]}
            return 404, f"{path} is not played here"


@contextmanager
def serving(folder: Path) -> Iterator[Api]:
    """The server on loopback, named by `folder`/kubeconfig. No pod is left at the end."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            status, found = api.answer(self.command, parts.path, query, json.loads(body) if body and self.command == "POST" else None)
            if status >= 400:
                found = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": found, "code": status}
            text = found if isinstance(found, str) else json.dumps(found)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(found, str) else "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield api
        finally:
            server.shutdown()
            for pod in [pod for pods in api.pods.values() for pod in pods]:
                if pod.process and pod.process.poll() is None:
                    os.killpg(pod.process.pid, signal.SIGKILL)


def write_kubeconfig(path: Path, server: str) -> None:
    """The file that tells Kubernetes' clients where the API server is."""
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "test",
    }
    YAML(typ="safe", pure=True).dump(found, path)
