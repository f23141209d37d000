"""nmt.hardware: what can be asked for, and what this machine has."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from nmt.config import parse
from nmt.errors import UserError
from nmt.hardware import HardwareConfig, compiles, prepare, warn_where_slow
from tests.copy_task import HARDWARE, PROJECT


def config(**changes: Any) -> HardwareConfig:
    return parse(HardwareConfig, {**HARDWARE, **changes}, "hardware")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY", "passive"))
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def test_the_cpu_can_always_be_asked_for() -> None:
    assert prepare(config(device="cpu")) == torch.device("cpu")


def test_auto_takes_a_gpu_if_there_is_one() -> None:
    assert prepare(config(device="auto")).type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^hardware\.device is cuda, but PyTorch sees no GPU here: set it to auto or cpu, or install"):
        prepare(config(device="cuda"))


def test_threads_are_as_many_as_asked_for() -> None:
    for threads in (1, 2, 3):
        prepare(config(threads=threads))
        assert torch.get_num_threads() == threads
    prepare(config(threads="auto"))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("name", ["threads", "decode_tokens", "workers"])
@pytest.mark.parametrize("value", [0, -1, "2", 1.5, None])
def test_a_count_is_a_number_from_one(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^hardware\.{name} is {value!r}: "):
        config(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("device", "gpu"), ("scratch", ""), ("scratch", None)])
def test_device_and_scratch_are_checked(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^hardware\.{name} is {value!r}: "):
        config(**{name: value})


def test_compilation_without_a_compiler_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    assert not compiles(config())
    with pytest.raises(UserError, match=r"^hardware\.compile is true, but there is no C\+\+ compiler g\+\+-99 here: install it, "):
        compiles(config(compile=True))
    monkeypatch.setenv("CXX", sys.executable)
    assert compiles(config(compile=True))


@pytest.mark.parametrize(
    ("precision", "device", "supported", "warned"),
    [
        ("bfloat16", "cpu", False, True),
        ("bfloat16", "cpu", True, False),
        ("float32", "cpu", False, False),
        ("bfloat16", "cuda", False, False),
    ],
)
def test_a_precision_that_the_processor_is_slow_at_is_named(
    precision: str, device: str, supported: bool, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    warn_where_slow(precision, torch.device(device))
    assert [record.getMessage() for record in caplog.records] == warned * [
        "this processor has no bfloat16 instructions: precision bfloat16 is slower here than float32"
    ]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_kept_and_the_next_large_tensors_cost_no_page_faults() -> None:
    program = """\
import resource
from nmt.hardware import HardwareConfig, prepare
prepare(HardwareConfig(device="cpu", threads=1))
import torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(64 << 18)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(max(faults() for _ in range(5)))
"""
    result = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True)
    assert int(result.stdout) < 100, result.stderr  # of 4 KiB each these would be 16,384


CHILD = """\
import sys, os
from nmt.hardware import HardwareConfig, prepare
assert "torch" not in sys.modules, "too late for the environment of OpenMP"
prepare(HardwareConfig(device="cpu", threads=1))
assert "torch" in sys.modules
print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("already", "found"),
    [({}, "None 10000"), ({"OMP_WAIT_POLICY": "active"}, "active None"), ({"GOMP_SPINCOUNT": "7"}, "None 7")],
)
def test_threads_spin_for_a_moment_unless_the_user_wants_otherwise(already: dict[str, str], found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment |= {"PYTHONPATH": str(PROJECT)} | already
    assert subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True).stdout == f"{found}\n"
