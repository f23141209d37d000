"""Has Kubernetes run the processes of one training, as a TrainJob of Kubeflow's Trainer that is known by its name.

The name stands for the work in this folder: who asks for it again follows the TrainJob that is there, so a killed caller loses nothing. A
TrainJob that has ended makes room for the next, which goes on from what was saved. Its pods mount the volume that this project lies on, at
the same path; each starts torchrun, to which the Trainer has told the number of nodes and where to meet.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.hardware import KubernetesConfig

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
RUNTIME = "torch-distributed"  # comes with the Trainer
NODE = "node"  # what that calls its job and its container
SAVE_SECONDS = 60  # from the signal to stop until Kubernetes kills a pod
LOOK_SECONDS = 1  # between two looks at log and state
ANSWER_SECONDS = 5, 30  # for the connection, and for an answer
LAST_LINES = 15  # of the log of a pod that failed
OF_JOB, INDEX = "jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-completion-index"  # labels of a pod


class KubernetesError(UserError):
    """The API server refused something or did not answer; `status` is HTTP's, 0 without an answer. The message has its words."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def chosen() -> bool:
    """Whether LAUNCHER in the environment asks for Kubernetes."""
    return os.environ.get("LAUNCHER") == "kubernetes"


def check_same(name: str) -> None:
    """Raise UserError in a pod that was created for other work than `name`: what it reads was edited while it waited."""
    if os.environ.get("TRAINJOB") != _full_name(name):
        raise UserError(
            f"parameters, data or code are not those for which the TrainJob {os.environ.get('TRAINJOB')} was created: "
            "run the same command again for the new ones"
        )


def manifest(name: str, arguments: Sequence[str], request: KubernetesConfig, processes: int) -> dict[str, Any]:
    """The TrainJob that runs `python -m arguments` in this folder, with so many processes on each node; checked against the SDK's models.

    Raises UserError when `request` leaves out what has no default, or when this folder does not lie on the volume.
    """
    try:
        from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
    except ModuleNotFoundError:
        raise _not_installed() from None
    for missing in ("image", "claim"):
        if getattr(request, missing) is None:
            raise UserError(f"hardware.kubernetes.{missing} is null: LAUNCHER=kubernetes needs one")
    folder = Path.cwd()
    if not folder.is_relative_to(request.mount_path):
        raise UserError(
            f"{folder} does not lie below hardware.kubernetes.mount_path, {request.mount_path}: work where the volume is mounted, "
            "for the pods look for the project at the same path"
        )
    resources = {
        "nvidia.com/gpu": request.gpus_per_node or None,
        "cpu": request.cpus_per_process and request.cpus_per_process * processes,
        "memory": request.memory,
    }
    amounts = {resource: str(amount) for resource, amount in resources.items() if amount is not None}
    environment = {"LAUNCHER": "kubernetes", "TRAINJOB": _full_name(name), "PYTHONUNBUFFERED": "1"}
    pod = {
        "nodeSelector": request.node_selector,
        "terminationGracePeriodSeconds": SAVE_SECONDS,
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": request.claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": request.shared_memory}},
        ],
        "containers": [
            {
                "name": NODE,
                "volumeMounts": [
                    {"name": "project", "mountPath": request.mount_path},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
    }
    patch = {"template": {"spec": {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}]}}}
    found = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {"name": _full_name(name), "namespace": request.namespace},
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "ClusterTrainingRuntime", "name": RUNTIME},
            "trainer": {
                "image": request.image,
                "numNodes": request.nodes,
                "numProcPerNode": processes,
                "resourcesPerNode": {"requests": amounts, "limits": amounts},
                "env": [{"name": key, "value": value} for key, value in environment.items()],
                "command": ["bash", "-c", 'cd "$0" && exec torchrun "$@"', str(folder)],
                "args": ["-m", *arguments],
            },
            "runtimePatches": [{"manager": "nmt-pipeline/train", "trainingRuntimeSpec": patch}],
        },
    }
    TrainerV1alpha1TrainJob.from_dict(found)
    return found


@dataclass
class Job:
    """A TrainJob, and how far its log was copied."""

    name: str
    namespace: str
    copied: str = ""  # time of the last line, as Kubernetes writes it, to the nanosecond
    looked: float | None = None  # when the log was last read

    @property
    def number(self) -> str:
        """What the job is called in sentences."""
        return self.name

    def state(self) -> tuple[str, str]:
        """One word for the state, and what Kubernetes says of it: gone, complete, failed, ending, suspended, created, waiting, running."""
        try:
            job = _ask(_trainjobs().get_namespaced_custom_object, *_place(self.namespace), self.name)
        except KubernetesError as error:
            if error.status == 404:
                return "gone", ""
            raise
        held = {condition["type"]: condition.get("message", "") for condition in _conditions(job) if condition["status"] == "True"}
        for kind in ("Complete", "Failed"):
            if kind in held:
                return kind.lower(), held[kind]
        if job["metadata"].get("deletionTimestamp"):
            return "ending", ""
        if "Suspended" in held:
            return "suspended", held["Suspended"]
        pods = self.pods()
        reasons = sorted({reason for pod in pods if (reason := _waits_for(pod))})
        return ("waiting", "; ".join(reasons)) if reasons else ("running", f"{len(pods)} pods") if pods else ("created", "")

    def pods(self) -> list[Any]:
        """Its pods, in the order of their creation. Raises KubernetesError."""
        listed = _ask(_core().list_namespaced_pod, self.namespace, label_selector=f"{OF_JOB}={self.name}").items
        return sorted(listed, key=lambda pod: pod.metadata.creation_timestamp)

    def follow(self, signals: Sequence[int]) -> None:
        """Copy the log of the first node to stdout until the TrainJob ends. One that was already ending is waited for.

        With one in `signals`, now or later, it is deleted, and its pods have SAVE_SECONDS to save their work; exits with 128 + that signal.
        Raises UserError, with the last lines of the pods that failed, when it fails or is deleted by others.
        """
        deleted = False
        first = shown = ""
        while True:
            if signals and not deleted:
                self._delete()
                deleted = True
            state = ""
            try:
                state, reason = self.state()
                line = f"TrainJob {self.name}: {state}{reason and f' ({reason})'}"
                self._copy()
            except KubernetesError as error:  # which says nothing about the training
                line = f"TrainJob {self.name}: {error}"
            if line != shown:
                print(line, flush=True)
                shown = line
            first = first or state
            if state in ("gone", "complete", "failed"):
                break
            time.sleep(LOOK_SECONDS)
        if deleted:
            sys.exit(128 + signals[0])
        if state == "gone" and first not in ("gone", "ending"):
            raise UserError(f"TrainJob {self.name} was deleted by others: the same command goes on from what was saved")
        if state == "failed":
            raise UserError(f"TrainJob {self.name} failed ({reason}){self._last()}")

    def _copy(self) -> None:
        """Print what the newest pod of the first node has logged since the last call."""
        mine = [pod for pod in self.pods() if (pod.metadata.labels or {}).get(INDEX) == "0" and pod.status.phase != "Pending"]
        if not mine:
            return
        now = time.monotonic()
        since = {} if self.looked is None else {"since_seconds": int(now - self.looked) + 10}
        log = _ask(_core().read_namespaced_pod_log, mine[-1].metadata.name, self.namespace, container=NODE, timestamps=True, **since)
        self.looked = now
        for line in log.splitlines():
            moment, _, text = line.partition(" ")
            if moment > self.copied:
                print(text, flush=True)
                self.copied = moment

    def _last(self) -> str:
        """The end of the log of each pod that failed."""
        lines = []
        try:
            for pod in self.pods():
                if pod.status.phase == "Failed":
                    log = _ask(_core().read_namespaced_pod_log, pod.metadata.name, self.namespace, container=NODE, tail_lines=LAST_LINES)
                    lines += [f"the last lines of {pod.metadata.name}:", *log.splitlines()]
        except KubernetesError as error:
            lines.append(f"its log cannot be read: {error}")
        return "".join(f"\n    {line}" for line in lines)

    def _delete(self) -> None:
        try:
            delete(self.name, self.namespace)
        except KubernetesError as error:
            raise UserError(
                f"TrainJob {self.name} goes on, for it could not be deleted ({error}): "
                f"kubectl delete trainjob -n {self.namespace} {self.name}"
            ) from None


def find(name: str, request: KubernetesConfig) -> Job | None:
    """The TrainJob of this name that waits, runs or is ending. One that has ended is removed. Raises KubernetesError."""
    job = Job(_full_name(name), request.namespace)
    state, _ = job.state()
    if state in ("complete", "failed"):
        delete(job.name, job.namespace)
        while job.state()[0] != "gone":
            time.sleep(LOOK_SECONDS)
    return None if state in ("gone", "complete", "failed") else job


def submit(name: str, arguments: Sequence[str], request: KubernetesConfig, processes: int) -> Job:
    """Create the TrainJob of `manifest`; one that another process has created meanwhile is as good. Raises KubernetesError."""
    try:
        _ask(_trainjobs().create_namespaced_custom_object, *_place(request.namespace), manifest(name, arguments, request, processes))
    except KubernetesError as error:
        if error.status != 409:
            raise
    return Job(_full_name(name), request.namespace)


def delete(name: str, namespace: str) -> None:
    """Have a TrainJob deleted, after its pods. One that is gone already is as good. Raises KubernetesError."""
    try:
        _ask(_trainjobs().delete_namespaced_custom_object, *_place(namespace), name, propagation_policy="Foreground")
    except KubernetesError as error:
        if error.status != 404:
            raise


def _full_name(name: str) -> str:
    """The same work in another folder leaves its results elsewhere, so it is another TrainJob. Names begin with a letter."""
    return f"train-{name}-{hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:6]}"


def _place(namespace: str) -> tuple[str, str, str, str]:
    return GROUP, VERSION, namespace, PLURAL


def _conditions(job: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = job.get("status", {}).get("conditions") or []
    return found


def _waits_for(pod: Any) -> str:
    """Why a pod does not run yet: its container's reason, or that of the scheduler."""
    for container in pod.status.container_statuses or []:
        if container.state.waiting:
            return f"{container.state.waiting.reason}: {container.state.waiting.message or container.image}"
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}"
    return "its pods are being started" if pod.status.phase == "Pending" else ""


def _trainjobs() -> Any:
    return _client("CustomObjectsApi")


def _core() -> Any:
    return _client("CoreV1Api")


@cache
def _client(kind: str) -> Any:
    """The part of Kubernetes' client called `kind`, for the cluster that KUBECONFIG, ~/.kube/config or the pod this runs in names."""
    try:
        from kubernetes import client, config
    except ModuleNotFoundError:
        raise _not_installed() from None
    configuration = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(configuration)
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
    except config.ConfigException as error:
        raise UserError(f"LAUNCHER is kubernetes, but no cluster is known here ({error}): set KUBECONFIG, or unset LAUNCHER") from None
    configuration.retries = 0
    return getattr(client, kind)(client.ApiClient(configuration))


def _not_installed() -> UserError:
    return UserError("LAUNCHER=kubernetes needs more packages: .venv/bin/pip install -e '.[cluster]'")


def _ask(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What the API server answers. Raises KubernetesError."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return call(*arguments, **options, _request_timeout=ANSWER_SECONDS)
    except ApiException as error:
        raise KubernetesError(f"Kubernetes refuses: {_message(error.body) or error.reason} ({error.status})", error.status) from None
    except HTTPError as error:
        server = call.__self__.api_client.configuration.host  # type: ignore[attr-defined]
        raise KubernetesError(f"the Kubernetes API at {server} does not answer ({_cause(error)})", 0) from None


def _cause(error: BaseException) -> str:
    """The innermost words of urllib3's error, which repeats the request around them."""
    return str(getattr(error, "reason", None) or error).rpartition(": ")[2]


def _message(body: str | None) -> str:
    try:
        return str(json.loads(body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return ""
