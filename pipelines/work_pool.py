"""`python -m pipelines.work_pool > pool.json`: the base job template of a Prefect work pool whose flow runs are pods with GPUs.

    prefect work-pool create gpus --type kubernetes --base-job-template pool.json

It is prefect-kubernetes' own template and, as job variables of a deployment, what that leaves out: GPUs, a volume, shared memory, node
selection, and time to save a checkpoint before the pod is killed. A training on several nodes is no pod of Prefect's: a pod that runs the
flow with LAUNCHER=kubernetes asks for it.
"""

import json
from typing import Any

# Name: (description, JSON type, default). Those without a default must be given.
VARIABLES: dict[str, tuple[str, str, Any]] = {
    "gpus": ("GPUs of the pod, written as a string, as all amounts are.", "string", "0"),
    "claim": ("The PersistentVolumeClaim of the volume that the project lies on.", "string", None),
    "mount_path": ("Where that volume is mounted.", "string", "/work"),
    "shared_memory": ("Size of /dev/shm.", "string", "8Gi"),
    "node_selector": ("Labels of the nodes that the pod may run on.", "object", {}),
    "grace_seconds": ("From the signal to stop until the pod is killed.", "integer", 60),
}


def template() -> dict[str, Any]:
    """The template, as `prefect work-pool create` reads it."""
    from prefect_kubernetes.worker import KubernetesWorker

    found: dict[str, Any] = KubernetesWorker.get_default_base_job_template()
    job = found["job_configuration"]["job_manifest"]["spec"]
    pod = job["template"]["spec"]
    for of_job in ("completions", "parallelism"):  # which stand in the pod there, where Kubernetes does not know them
        if of_job in pod:
            job[of_job] = pod.pop(of_job)
    pod["terminationGracePeriodSeconds"] = "{{ grace_seconds }}"
    pod["nodeSelector"] = "{{ node_selector }}"
    pod["volumes"] = [
        {"name": "project", "persistentVolumeClaim": {"claimName": "{{ claim }}"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "{{ shared_memory }}"}},
    ]
    [container] = pod["containers"]
    container["resources"]["limits"]["nvidia.com/gpu"] = "{{ gpus }}"
    container["volumeMounts"] = [
        {"name": "project", "mountPath": "{{ mount_path }}"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    for name, (description, kind, default) in VARIABLES.items():
        variable = {"title": name, "description": description, "type": kind}
        found["variables"]["properties"][name] = variable if default is None else variable | {"default": default}
    found["variables"]["required"] = [name for name, (*_, default) in VARIABLES.items() if default is None]
    return found


if __name__ == "__main__":
    print(json.dumps(template(), indent=1))
