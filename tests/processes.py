"""Real processes that join a group and work together, as torchrun starts them."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from nmt.errors import UserError
from nmt.ranks import joined

CPU = torch.device("cpu")


def in_processes(size: int, work: Callable[..., Any], *arguments: Any, patience: float = 60) -> list[Any]:
    """What `work(ranks, *arguments)` returns or raises in each of `size` real processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, size, port, patience, results, work, arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=100) for _ in ranks)
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    return [found[rank] for rank in range(size)]


def _rank(rank: int, size: int, port: int, patience: float, results: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    try:
        with joined(CPU, patience) as ranks:
            results.put((rank, work(ranks, *arguments)))
            results.close()
            results.join_thread()
    except UserError as error:
        results.put((rank, str(error)))
