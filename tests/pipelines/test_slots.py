"""GPU slots: never more stages at once than slots, never two on one GPU, whoever runs them. A slot is a lock and a variable."""

import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from ruamel.yaml import YAML

from pipelines import slots
from tests.pipelines.toy import Toy, wait_until

PIPELINE = """\
stages:
  prepare:
    cmd: python stages/work.py prepare prepared
    params: [n]
    outs: [prepared]
  train:
    matrix:
      variant: [a, b, c]
    meta: {gpu: true}
    cmd: python stages/work.py train-${item.variant} model-${item.variant}
    deps: [prepared]
    outs: ["model-${item.variant}"]
"""
WORK = """\
import json, os, sys, time
from pathlib import Path

name, out = sys.argv[1:]
began = time.time()
time.sleep(1.5)
Path(out).write_text(name)
with open(os.environ["RECORD"], "a") as record:
    print(json.dumps([name, os.environ.get("CUDA_VISIBLE_DEVICES"), began, time.time()]), file=record)
"""


class Ran(NamedTuple):
    stage: str
    devices: str | None
    began: float
    ended: float


def overlap(one: Ran, other: Ran) -> bool:
    return one.began < other.ended and other.began < one.ended


# --- places ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the test's own, and no server to count."""
    monkeypatch.setattr(slots, "LOCKS", tmp_path)
    monkeypatch.setattr(slots, "POLL", 0.01)
    monkeypatch.setattr(slots, "_counted", lambda *arguments: True)


def told(text: str) -> None:
    """Hears what is waited for."""


def now(gpu: bool = True, job: bool = False) -> Iterator[str | None]:
    """The devices of a place that is to be had at once, or nothing."""
    looks = itertools.count()
    with slots.place(gpu, job, lambda: next(looks) > 1, told) as place:
        yield None if place is None else place.environment.get("CUDA_VISIBLE_DEVICES", "all")


@pytest.mark.usefixtures("local")
def test_without_slots_a_stage_has_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_SLOTS", raising=False)
    assert [next(now()), next(now(gpu=False)), next(now(job=True))] == ["all", "all", "all"]


@pytest.mark.usefixtures("local")
def test_jobs_of_a_cluster_take_no_place_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_SLOTS", raising=False)
    monkeypatch.setattr(slots, "ELSEWHERE", True)
    jobs, here = [now(job=True) for _ in range(3)], [now(), now(gpu=False)]
    assert [next(one) for one in jobs] == ["all", "all", "all"]
    assert [next(one) for one in here] == ["all", None]  # an average, say, and a cleaning


@pytest.mark.usefixtures("local")
def test_each_slot_is_given_once_and_again_when_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", "0,1 MIG-7/1/0")
    first, second, third = now(), now(), now()
    assert [next(first), next(second), next(third)] == ["0,1", "MIG-7/1/0", None]
    first.close()  # type: ignore[attr-defined]
    again = now()
    assert next(again) == "0,1"
    monkeypatch.setenv("GPU_SLOTS", "1 2")  # another flow, cut in another way: GPU 1 is in use
    assert next(now()) == "2"


@pytest.mark.usefixtures("local")
def test_beside_the_gpu_stages_one_other_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", "0")
    trains, cleans = now(), now(gpu=False)
    assert [next(trains), next(cleans), next(now(gpu=False))] == ["0", "all", None]


@pytest.mark.usefixtures("local")
def test_a_stage_that_still_saves_its_work_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", "0")
    with slots.place(True, False, lambda: False, told) as place:
        assert place is not None
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=place.held)
    try:
        assert next(now()) is None
    finally:
        left.communicate(b"\n")
    assert next(now()) == "0"


@pytest.mark.usefixtures("local")
def test_many_at_once_never_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", "0 1")
    using: list[str] = []
    most: list[int] = []
    lock = threading.Lock()

    def stage() -> None:
        with slots.place(True, False, lambda: False, told) as place:
            assert place is not None
            with lock:
                using.append(place.environment["CUDA_VISIBLE_DEVICES"])
                most.append(len(using) if len(set(using)) == len(using) else 99)
            threading.Event().wait(0.02)
            with lock:
                using.remove(place.environment["CUDA_VISIBLE_DEVICES"])

    threads = [threading.Thread(target=stage) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 12 and max(most) == 2


def test_a_gpu_in_two_slots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", "0,1 1,2")
    with pytest.raises(slots.SlotError, match="GPU_SLOTS is '0,1 1,2', with 1 in it twice"):
        slots.slots()


@pytest.mark.parametrize(("words", "wrong"), [("a b", "a"), ("-1", "-1"), ("0 1,x", "x"), ("0,", "")])
def test_what_names_no_gpu_is_refused(words: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_SLOTS", words)
    with pytest.raises(slots.SlotError, match=f"^GPU_SLOTS is '{words}', but '{wrong}' is no GPU: "):
        slots.slots()


def test_dvc_yaml_says_which_stages_compute_on_gpus() -> None:
    stages = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "dvc.yaml").read_text("utf-8"))["stages"]
    prepares = {name for name in stages if "hardware.prepare(" in (Path(__file__).parents[2] / "stages" / f"{name}.py").read_text("utf-8")}
    assert {name for name, stage in stages.items() if stage.get("meta", {}).get("gpu")} == prepares != set()
    assert {name for name, stage in stages.items() if stage.get("meta", {}).get("job")} == {"train"}


# --- flows ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(fresh: Toy, server: dict[str, str]) -> Toy:
    """A workspace with three variants to train, and two slots."""
    (fresh.folder / "dvc.yaml").write_text(PIPELINE)
    (fresh.folder / "stages" / "work.py").write_text(WORK)
    locks = fresh.folder / "locks"
    locks.mkdir()
    fresh.environment = fresh.environment | server | {"GPU_SLOTS": "0 1", "TMPDIR": str(locks), "RECORD": str(fresh.folder / "record")}
    return fresh


def set_limit(toy: Toy, count: int) -> None:
    """Have the server of `toy` count to `count`, whatever it has."""
    url = f"{toy.environment['PREFECT_API_URL']}/v2/concurrency_limits/"

    def sent(method: str, address: str, content: dict[str, Any]) -> bool:
        request = Request(address, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method)
        try:
            urlopen(request).close()
        except HTTPError as error:
            assert error.code in (409, 503), error.read()
            return error.code == 409  # it is there already; 503: the server has too much to do
        return True

    wait_until(lambda: sent("POST", url, {"name": slots.limit(), "limit": count}), "the limit is not made")
    wait_until(lambda: sent("PATCH", url + slots.limit(), {"limit": count}), "the limit is not set")


def record(toy: Toy) -> list[Ran]:
    return [Ran(*json.loads(line)) for line in toy.read("record").splitlines()]


@pytest.mark.slow
@pytest.mark.essential
def test_three_variants_on_two_slots(three: Toy) -> None:
    code, output = three.run("pipelines.repro")
    assert code == 1 and f"names 2 slots, but the Prefect server has no limit {slots.limit()}: `prefect gcl create " in output, output
    assert not (three.folder / "record").exists()  # nothing was begun

    set_limit(three, 2)
    code, output = three.run("pipelines.repro")
    assert code == 0, output
    prepare, *trained = record(three)
    assert (prepare.stage, prepare.devices) == ("prepare", None)
    assert sorted(one.stage for one in trained) == ["train-a", "train-b", "train-c"]
    together = [{one.devices, other.devices} for one, other in itertools.combinations(trained, 2) if overlap(one, other)]
    assert together and all(devices == {"0", "1"} for devices in together)
    assert not any(all(itertools.starmap(overlap, itertools.combinations(trio, 2))) for trio in itertools.combinations(trained, 3))
    locked = YAML(typ="safe", pure=True).load(three.read("dvc.lock"))["stages"]
    assert set(locked) == {"prepare", "train@a", "train@b", "train@c"}
    assert json.loads(three.run("dvc", "status", "--json")[1]) == {}


@pytest.mark.slow
def test_with_a_cluster_all_variants_are_trained_at_once(three: Toy) -> None:
    (three.folder / "dvc.yaml").write_text(PIPELINE.replace("{gpu: true}", "{gpu: true, job: true}"))
    three.environment = {name: value for name, value in three.environment.items() if name != "GPU_SLOTS"} | {"LAUNCHER": "slurm"}
    code, output = three.run("pipelines.repro")
    assert code == 0, output
    _, *trained = record(three)
    assert len(trained) == 3 and all(itertools.starmap(overlap, itertools.combinations(trained, 2)))
    assert json.loads(three.run("dvc", "status", "--json")[1]) == {}


@pytest.mark.slow
def test_two_flows_and_a_limit_that_was_lowered_to_one(three: Toy, tmp_path: Path) -> None:
    """Prefect counts what two workspaces run, and an operator's limit holds for both."""
    set_limit(three, 1)
    other = Toy(tmp_path / "other", three.environment)
    shutil.copytree(three.folder, other.folder)
    flows = [one.start("pipelines.repro", "train@a", "train@b") for one in (three, other)]
    for flow in flows:
        output, _ = flow.communicate(timeout=300)
        assert flow.returncode == 0, output
    trained = [one for one in record(three) if one.devices is not None]
    assert len(trained) == 4
    assert not any(itertools.starmap(overlap, itertools.combinations(trained, 2)))
