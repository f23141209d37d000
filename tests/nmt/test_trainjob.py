"""A TrainJob: what is asked for, and what each answer of the API server is to its caller. HTTP is real, the cluster is played."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from nmt import trainjob
from nmt.errors import UserError
from nmt.hardware import KubernetesConfig
from nmt.trainjob import KubernetesError, find, manifest, submit
from tests.kubernetes_api import Api, Pod, serving, write_kubeconfig

ARGUMENTS = ["stages.train", "variants.toy", "shards", "checkpoints", "training.tsv"]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Pods are described and not started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(trainjob, "LOOK_SECONDS", 0.02)
    trainjob._client.cache_clear()
    with serving(tmp_path) as found:
        found.held = True
        yield found
    trainjob._client.cache_clear()


def request(**changes: Any) -> KubernetesConfig:
    return KubernetesConfig(**{"image": "registry/nmt:1", "claim": "project", "mount_path": str(Path.cwd()), "namespace": "nlp", **changes})


def test_the_manifest_asks_for_what_hardware_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wishes = dict(nodes=2, gpus_per_node=4, cpus_per_process=6, memory="200Gi", shared_memory="16Gi", node_selector={"gpu": "h100"})
    found = manifest("0123456789abcdef", ARGUMENTS, request(**wishes), 4)
    assert re.fullmatch("train-0123456789abcdef-[0-9a-f]{6}", found["metadata"]["name"]) and found["metadata"]["namespace"] == "nlp"
    trainer = found["spec"]["trainer"]
    assert (trainer["image"], trainer["numNodes"], trainer["numProcPerNode"]) == ("registry/nmt:1", 2, 4)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "4", "cpu": "24", "memory": "200Gi"}
    assert trainer["command"][-1] == str(tmp_path) and trainer["args"] == ["-m", *ARGUMENTS]
    assert {"name": "TRAINJOB", "value": found["metadata"]["name"]} in trainer["env"]
    [job] = found["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 30 and pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["volumes"] == [
        {"name": "project", "persistentVolumeClaim": {"claimName": "project"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    ]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"project": str(tmp_path), "shared-memory": "/dev/shm"}


def test_the_sdks_models_know_every_field_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = manifest("0123456789abcdef", ARGUMENTS, request(gpus_per_node=1, node_selector={"gpu": "h100"}), 1)
    model = TrainerV1alpha1TrainJob.from_dict(found)
    assert model is not None and model.to_dict() == found, "a field that they do not know is left out"
    again = manifest("0123456789abcdef", ARGUMENTS, request(), 1)
    assert again["spec"]["trainer"]["resourcesPerNode"] == {"requests": {}, "limits": {}}


def test_the_same_training_in_another_folder_is_another_trainjob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path / "a"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        names.add(manifest("0123456789abcdef", ARGUMENTS, request(), 1)["metadata"]["name"])
    assert len(names) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": None}, "hardware.kubernetes.image is null: LAUNCHER=kubernetes needs one"),
        ({"claim": None}, "hardware.kubernetes.claim is null: LAUNCHER=kubernetes needs one"),
        (
            {"mount_path": "/elsewhere"},
            ".* does not lie below hardware.kubernetes.mount_path, /elsewhere: work where the",
        ),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{said}"):
        manifest("0123456789abcdef", ARGUMENTS, request(**changes), 1)


def job_of(api: Api) -> tuple[trainjob.Job, list[Pod]]:
    job = submit("0123456789abcdef", ARGUMENTS, request(nodes=2), 1)
    return job, api.pods[job.name]


def test_each_state_has_its_word_and_kubernetes_own_reason(api: Api) -> None:
    job, pods = job_of(api)
    assert job.state() == ("waiting", "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    for pod in pods:
        pod.conditions, pod.waits = [], {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    assert job.state() == ("waiting", "ImagePullBackOff: Back-off pulling image")
    for pod in pods:
        pod.waits = None
    assert job.state() == ("waiting", "its pods are being started")
    pods[0].phase = pods[1].phase = "Running"
    assert job.state() == ("running", "2 pods")
    api.condition(job.name, "Suspended", "Trainjob is suspended")
    assert job.state() == ("suspended", "Trainjob is suspended")
    api.condition(job.name, "Failed", "jobset failed")
    assert job.state() == ("failed", "jobset failed")
    api.condition(job.name, "Complete", "jobset completed")
    assert job.state() == ("complete", "jobset completed")
    api.jobs[job.name]["status"], api.pods[job.name] = {}, []
    assert job.state() == ("created", "")
    api.pods[job.name] = pods
    api.delete_later = api.delete(job.name)
    pods[0].process = None
    assert job.state()[0] == "ending"
    pods[0].phase = pods[1].phase = "Failed"
    assert job.state() == ("gone", "")


def test_lines_of_the_first_node_are_printed_once_whatever_the_number_of_looks(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job, pods = job_of(api)
    job._copy()
    pods[0].phase = "Running"
    pods[1].phase, pods[1].log = "Running", [("2026-01-01T00:00:00.000000Z", "of the second node")]
    for number in range(3):
        pods[0].log.append((f"{_now()}{number}Z", f"line {number} of the first"))
        job._copy()
        job._copy()
    assert capsys.readouterr().out.splitlines() == [f"line {number} of the first" for number in range(3)]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.00000", time.gmtime())


def test_a_failure_is_a_sentence_with_the_last_lines_of_the_pod_that_failed(api: Api) -> None:
    job, pods = job_of(api)
    pods[1].phase, pods[1].log = "Failed", [("2026-01-01T00:00:00.000000Z", f"line {number}") for number in range(40)]
    pods[0].phase = "Succeeded"
    with pytest.raises(UserError) as failed:
        job.follow([])
    first, *last = str(failed.value).split("\n    ")
    assert first == f"TrainJob {job.name} failed (jobset failed due to one or more job failures)"
    assert last == [f"the last lines of {pods[1].name}:", *(f"line {number}" for number in range(25, 40))]


def test_one_that_ended_makes_room_and_one_that_is_there_is_followed(api: Api) -> None:
    job, pods = job_of(api)
    assert find("0123456789abcdef", request()) == job
    pods[0].phase = pods[1].phase = "Failed"
    assert find("0123456789abcdef", request()) is None and api.jobs == {}
    assert find("fedcba9876543210", request()) is None


def test_one_that_exists_already_is_as_good_as_a_new_one(api: Api) -> None:
    first, _ = job_of(api)
    second, _ = job_of(api)
    assert first == second and len(api.created) == 1 and api.requests.count(("POST", api.requests[0][1])) == 2


def test_one_that_others_delete_ends_in_a_sentence(api: Api) -> None:
    job, pods = job_of(api)
    shown = iter([job.state(), ("gone", "")])
    job.state = lambda: next(shown)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="was deleted by others: the same command goes on from what was saved"):
        job.follow([])


def test_a_refusal_has_kubernetes_own_words(api: Api) -> None:
    message = 'trainjobs.trainer.kubeflow.org is forbidden: User "me" cannot create resource "trainjobs" in the namespace "nlp"'
    api.refused["POST", "/trainjobs"] = 403, message
    with pytest.raises(KubernetesError) as refused:
        submit("0123456789abcdef", ARGUMENTS, request(), 1)
    assert str(refused.value) == f"Kubernetes refuses: {message} (403)" and api.created == []


def test_a_failed_question_does_not_end_the_following_and_a_refused_deletion_says_what_goes_on(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    job, pods = job_of(api)
    api.refused["GET", "/pods"] = 403, "pods is forbidden"
    signals: list[int] = []
    api.refused["DELETE", job.name] = 500, "etcdserver: leader changed"
    waits = iter(range(5))

    class Later(list[int]):
        def __bool__(self) -> bool:
            return next(waits) == 3

    with pytest.raises(UserError, match=rf"^TrainJob {job.name} goes on, .* \(500\)\): kubectl delete trainjob -n nlp {job.name}$"):
        job.follow(Later([15, *signals]))
    assert capsys.readouterr().out == f"TrainJob {job.name}: Kubernetes refuses: pods is forbidden (403)\n"


def test_a_server_that_does_not_answer_and_a_missing_kubeconfig_are_named(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kubeconfig(tmp_path / "closed", "http://127.0.0.1:1")
    for path, said in (
        (tmp_path / "closed", "^the Kubernetes API at http://127.0.0.1:1 does not answer \\(.*refused\\)$"),
        (tmp_path / "missing", "^LAUNCHER is kubernetes, but no cluster is known here .*: set KUBECONFIG, or unset LAUNCHER"),
    ):
        monkeypatch.setenv("KUBECONFIG", str(path))
        trainjob._client.cache_clear()
        began = time.monotonic()
        with pytest.raises(UserError, match=said):
            find("0123456789abcdef", request())
        assert time.monotonic() - began < 10


def test_a_pod_for_other_work_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINJOB", "train-0123456789abcdef-000000")
    with pytest.raises(UserError, match="are not those for which the TrainJob train-0123456789abcdef-000000 was created: run the"):
        trainjob.check_same("fedcba9876543210")
