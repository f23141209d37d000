"""The base job template: what a deployment's job variables make of it, held against the models of Prefect's worker and of Kubernetes."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.work_pool import template


def manifest(**values: Any) -> dict[str, Any]:
    """The Job that Prefect's worker would create. Nothing in the template asks the server for something."""
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    made = KubernetesWorkerJobConfiguration.from_template_and_values(template(), values, client=SimpleNamespace())
    return dict(asyncio.run(made).job_manifest)  # type: ignore[arg-type]


def test_the_pod_has_gpus_shared_memory_the_volume_and_time_to_save() -> None:
    job = manifest(
        image="nmt", gpus="4", claim="project", mount_path="/volume", shared_memory="16Gi", node_selector={"gpu": "h100"}, grace_seconds=90
    )
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]} == {"/volume": "project", "/dev/shm": "shared-memory"}
    assert {volume["name"]: volume for volume in pod["volumes"]} == {
        "project": {"name": "project", "persistentVolumeClaim": {"claimName": "project"}},
        "shared-memory": {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    }
    assert (pod["terminationGracePeriodSeconds"], pod["nodeSelector"]) == (90, {"gpu": "h100"})


def test_kubernetes_models_know_every_field() -> None:
    from kubernetes.client import ApiClient

    client = ApiClient()
    job = manifest(image="nmt", claim="project", gpus="1", node_selector={"gpu": "h100"})
    found = client.sanitize_for_serialization(client.deserialize(json.dumps(job), "V1Job", "application/json"))
    assert found == job, "a field that they do not know is left out"


def test_the_claim_alone_must_be_given_and_the_rest_has_defaults() -> None:
    variables = template()["variables"]
    assert variables["required"] == ["claim"] and {"image", "namespace", "gpus"} <= variables["properties"].keys()
    pod = manifest(claim="project")["spec"]["template"]["spec"]
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/work" and pod["terminationGracePeriodSeconds"] == 60


@pytest.mark.slow
def test_the_command_prints_json() -> None:
    done = subprocess.run([sys.executable, "-m", "pipelines.work_pool"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == template()
