"""Speed of training beside others, as ratios in one run.

    python benchmarks/train.py                                            small and base, float32 and bfloat16, on the CPU
    python benchmarks/train.py --configs small --precisions bfloat16 --rounds 5
    python benchmarks/train.py --peers marian=PYTHON,fairseq=PYTHON       also others (benchmarks/peers.py), each in its interpreter
    python benchmarks/train.py --device cuda --configs base,big --precisions bfloat16 --tokens 25000

Every contender does the same work: forward, backward and an Adam step on the same batches of synthetic pairs (lengths log-normal around 26,
tokens by Zipf's law, sorted by length). Each runs in a process of its own, in turn, several rounds. The time of a batch is the fastest
of all rounds, because the machine may be shared; the unit is real target tokens a second. The ratios are printed last.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where nmt is

from workload import BOS, CONFIGS, DROPOUT, EOS, PAD, SMOOTHING, Pairs, pairs_of

PASSES = 3  # over all batches, in one process; the first one warms up


def ours(config: str, precision: str, device: str, batches: list[Pairs]) -> Callable[[int], None]:
    """The Trainer of this project."""
    from nmt import hardware, symbols

    assert (symbols.PAD, symbols.BOS, symbols.EOS) == (PAD, BOS, EOS)
    place = hardware.prepare(hardware.HardwareConfig(device=device))  # type: ignore[arg-type]
    from nmt.batches import Update, collate
    from nmt.training import TrainConfig, Trainer

    settings: dict[str, Any] = dict(updates=1000, tokens_per_update=10**6, microbatches=1, warmup_updates=4000, label_smoothing=SMOOTHING)
    settings |= dict(
        adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9, checkpoint_every=1000, checkpoints_kept=1, patience=None, precision=precision
    )
    trainer = Trainer(TrainConfig(**settings), model_config(config), CONFIGS[config]["vocab"], 1, place)
    updates = []
    for pairs in batches:
        batch = collate(pairs)
        updates.append(Update([], batch.tokens, 1, {0: batch}))

    def step(number: int) -> None:
        trainer.update(updates[number])

    return step


def model_config(config: str) -> Any:
    """The configuration as this project writes it."""
    from nmt.model import ModelConfig

    c = CONFIGS[config]
    d_k = c["d_model"] // c["heads"]
    sizes = {key: c[key] for key in ("layers", "d_model", "d_ff", "heads")}
    return ModelConfig(**sizes, d_k=d_k, d_v=d_k, dropout=DROPOUT, positions="sinusoidal")


def share_of_a_product(config: str, precision: str, device: str, batches: list[Pairs], seconds: float) -> str:
    """Which share of the rate of a plain product the products of our updates reach, in words."""
    import torch

    from nmt.operations import product_rate, training_operations

    lengths = [(len(source) + 1, len(target) + 1) for pairs in batches for source, target in pairs]
    rate = training_operations(model_config(config), CONFIGS[config]["vocab"], lengths) / seconds
    peak = product_rate(precision, torch.device(device))
    return f"ours: {rate / 1e12:.3g} TFLOP/s, {rate / peak:.0%} of the {peak / 1e12:.3g} of a plain product"


def work(contender: str, config: str, precision: str, device: str, tokens: int) -> None:
    """Print the seconds of each batch, the fastest of PASSES, and the peak memory in GiB as JSON."""
    batches = pairs_of(config, tokens)
    if contender == "ours":
        step = ours(config, precision, device, batches)  # prepares the machine before torch is imported
    else:
        from peers import peer

        step = peer(contender, CONFIGS[config], precision, device, batches)
    import torch

    best = [float("inf")] * len(batches)
    for _ in range(PASSES):
        for number in range(len(batches)):
            began = time.perf_counter()
            step(number)
            if device == "cuda":
                torch.cuda.synchronize()
            best[number] = min(best[number], time.perf_counter() - began)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": best, "memory": memory / 2**30}))


def main() -> None:
    """Run the contenders in turn and print what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default="small,base")
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", type=int, default=2000, help="target tokens of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="", metavar="NAME=PYTHON,…", help="of benchmarks/peers.py, and where each is installed")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options.device, options.tokens)
        return
    contenders = {"ours": sys.executable, "nn.Transformer": sys.executable}
    contenders |= dict(entry.split("=", 1) for entry in options.peers.split(",") if entry)
    ratios = []
    print(f"{os.cpu_count()} cores, {options.device}, {options.tokens} target tokens a batch, {options.rounds} rounds of {PASSES} passes")
    for config in options.configs.split(","):
        batches = pairs_of(config, options.tokens)
        tokens = sum(len(target) + 1 for pairs in batches for _, target in pairs)
        for precision in options.precisions.split(","):
            best: dict[str, Any] = {}
            memory: dict[str, float] = {}
            for _ in range(options.rounds):
                for contender, python in contenders.items():
                    same = ["--device", options.device, "--tokens", str(options.tokens)]
                    command = [python, __file__, "--work", contender, config, precision, *same]
                    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
                    best[contender] = np.minimum(best.get(contender, np.inf), found["seconds"])
                    memory[contender] = found["memory"]
            rates = {contender: tokens / seconds.sum() for contender, seconds in best.items()}
            used = share_of_a_product(config, precision, options.device, batches, best["ours"].sum())
            for contender, rate in rates.items():
                print(f"{config:5} {precision:8} {contender:14} {rate:10,.0f} target tokens/s   {memory[contender]:.2f} GiB")
            print(f"{config:5} {precision:8} {used}")
            ratios += [
                f"{config:5} {precision:8} ours / {contender}: {rates['ours'] / rate:.2f}"
                for contender, rate in rates.items()
                if contender != "ours"
            ]
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
