"""The machine: device, threads and arithmetic libraries. Changes speed and rounding, never what is computed.

`prepare` must run before torch is imported for the first time, because OpenMP reads its environment then; so this
module imports torch only inside its functions.
"""

import ctypes
import logging
import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from nmt.config import Config
from nmt.errors import UserError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

GLIBC_M_TRIM_THRESHOLD, GLIBC_M_TOP_PAD, GLIBC_M_MMAP_MAX = -1, -2, -4
MADV_HUGEPAGE, HUGE_PAGE = 14, 2 << 20
HEAP = 1 << 30  # bytes that are to lie in huge pages
Address = Annotated[str, Field(pattern=r"^https?://[^/]+")]


class SlurmConfig(Config):
    """Section `hardware.slurm`: what the job of a training asks for. None is Slurm's own default."""

    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(0, ge=0)
    cpus_per_process: int | None = Field(None, ge=1)
    memory: str | None = None
    partition: str | None = None
    time: str | None = None
    options: list[Annotated[str, Field(pattern=r"^--[a-z]")]] = []


class KubernetesConfig(Config):
    """Section `hardware.kubernetes`: what the TrainJob of a training asks for, and where it finds the project."""

    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(0, ge=0)
    cpus_per_process: int | None = Field(None, ge=1)
    memory: str | None = None
    shared_memory: str = "8Gi"
    namespace: str = "default"
    image: str | None = None
    claim: str | None = None
    mount_path: Annotated[str, Field(pattern="^/")] = "/work"
    node_selector: dict[str, str] = {}


class HardwareConfig(Config):
    """Section `hardware`: read by the stages that compute, a dependency of none."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    compile: bool = False
    patience: float = Field(600, gt=0, le=1_000_000)
    scratch: str = Field(".scratch", min_length=1)
    decode_tokens: int = Field(6000, ge=1)
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    mirrors: dict[Address, Address] = {}
    dask: str | None = None
    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()


def prepare(config: HardwareConfig) -> "torch.device":
    """Set this process up for fast arithmetic and return the device to compute on.

    Of several processes on this machine, as torchrun starts them, each takes its share of the cores and a GPU of its own.
    Raises UserError when a GPU is asked for and there is none.
    """
    # Threads that spin while they wait are fast alone, but bring two trainings on one machine to a few percent of their speed each;
    # threads that sleep at once lose a quarter. A short spin, some microseconds, costs little in either case.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # oneDNN compiles a product for each shape, two milliseconds each, and keeps 1,024 of them by default: fewer than a training needs.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    _keep_freed_memory()
    import torch

    neighbours, place = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if config.threads != "auto":
        torch.set_num_threads(config.threads)
    elif neighbours > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
    if not torch.cpu._is_amx_tile_supported():
        # On processors other than Intel's, torch's default for float32 products (MKL) is half as fast as oneDNN, which "medium" selects.
        # The kernel is float32 all the same, except with AMX units, where it would be bfloat16.
        torch.set_float32_matmul_precision("medium")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is cuda, but PyTorch sees no GPU here: set it to auto or cpu, or install a CUDA build of PyTorch")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if place >= torch.cuda.device_count():
        raise UserError(f"process {place} of this machine has no GPU: there are {torch.cuda.device_count()}, one for each process")
    torch.cuda.set_device(place)
    return torch.device("cuda", place)


def compiles(config: HardwareConfig) -> bool:
    """Whether torch.compile is to be used. Raises UserError when it is asked for and has no compiler here to call."""
    compiler = os.environ.get("CXX", "g++")
    if config.compile and shutil.which(compiler) is None:
        raise UserError(
            f"hardware.compile is true, but there is no C++ compiler {compiler} here: install it, name another in CXX, or set it to false"
        )
    return config.compile


def warn_where_slow(precision: str, device: "torch.device") -> None:
    """Say so where the processor has no instructions for the products of `precision`, which are then slower than those of float32."""
    import torch

    if precision == "bfloat16" and device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        log.warning("this processor has no bfloat16 instructions: precision bfloat16 is slower here than float32")


def _keep_freed_memory() -> None:
    """Tell glibc to reuse freed memory instead of giving it back, and Linux to map it in pages of 2 MiB.

    Large temporaries then cost no page faults and few walks through the page table, which take a tenth of the time on a virtual machine.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(GLIBC_M_MMAP_MAX, 0)
    libc.mallopt(GLIBC_M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(GLIBC_M_TOP_PAD, 256 << 20)
    # The heap grows at once by a range of addresses, without memory behind them yet, so that one piece of advice holds for all of it.
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    block = libc.malloc(ctypes.c_size_t(HEAP))
    if block is None:
        return
    begin = -(-block // HUGE_PAGE) * HUGE_PAGE
    libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t((block + HEAP - begin) // HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE)
    libc.free(block)
