"""Speed of training beside others, as ratios in one run.

    python benchmarks/train.py                                            small and base, float32 and bfloat16, on the CPU
    python benchmarks/train.py --configs small --precisions bfloat16 --rounds 5
    python benchmarks/train.py --marian PYTHON                            also Hugging Face's Marian, in that interpreter
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

CONFIGS: dict[str, dict[str, int]] = {
    "small": dict(layers=3, d_model=256, d_ff=1024, heads=4, vocab=8000, batches=16),
    "base": dict(layers=6, d_model=512, d_ff=2048, heads=8, vocab=37000, batches=6),
    "big": dict(layers=6, d_model=1024, d_ff=4096, heads=16, vocab=37000, batches=6),
}
DROPOUT, SMOOTHING = 0.1, 0.1
PASSES = 3  # over all batches, in one process; the first one warms up
PAD, BOS, EOS, ORDINARY = 0, 2, 3, 4  # as nmt.symbols numbers them; checked below
Pairs = list[tuple[list[int], list[int]]]


def pairs_of(config: str, tokens: int) -> list[Pairs]:
    """Batches of about `tokens` target tokens, short and long sentences in turn; each pair without special tokens."""
    rng, vocab, count = np.random.default_rng(1), CONFIGS[config]["vocab"], CONFIGS[config]["batches"]
    src = rng.lognormal(np.log(26) - 0.18, 0.6, max(20_000, count * tokens // 10))
    tgt = src * rng.lognormal(0.0, 0.15, len(src))
    lengths = np.stack([src, tgt]).round().clip(3, 120).astype(int).T
    lengths = lengths[np.lexsort((lengths[:, 0], lengths.max(1)))]
    starts = np.flatnonzero(np.diff(np.cumsum(lengths.max(1) + 1) // tokens, prepend=-1))
    chosen = np.linspace(0, len(starts) - 2, count + 2).round().astype(int)[1:-1]

    def words(length: int) -> list[int]:
        return (ORDINARY + (vocab - ORDINARY) ** rng.random(length) - 1).astype(int).clip(ORDINARY, vocab - 1).tolist()  # type: ignore[no-any-return]

    return [[(words(s), words(t)) for s, t in lengths[starts[i] : starts[i + 1]]] for i in chosen]


def flop(config: str, pairs: Pairs) -> float:
    """Operations of an update: a multiplication and an addition are two, backward is twice forward, padding does not count."""
    c = CONFIGS[config]
    d, f, n, total = c["d_model"], c["d_ff"], c["layers"], 0.0
    for source, target in pairs:
        s, t = len(source) + 1, len(target) + 1
        total += n * (2 * s * (4 * d * d + 2 * d * f) + 4 * s * s * d)
        total += n * (2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d + 4 * t * t * d + 4 * s * t * d) + 2 * t * d * c["vocab"]
    return 3 * total


def ours(config: str, precision: str, device: str, batches: list[Pairs]) -> Callable[[int], None]:
    """The Trainer of this project."""
    from nmt import hardware, symbols

    assert (symbols.PAD, symbols.BOS, symbols.EOS) == (PAD, BOS, EOS)
    place = hardware.prepare(hardware.HardwareConfig(device=device))  # type: ignore[arg-type]
    from nmt.batches import Update, collate
    from nmt.model import ModelConfig
    from nmt.training import TrainConfig, Trainer

    c = CONFIGS[config]
    model = ModelConfig(
        **{key: c[key] for key in ("layers", "d_model", "d_ff", "heads")},
        d_k=c["d_model"] // c["heads"],
        d_v=c["d_model"] // c["heads"],
        dropout=DROPOUT,
        positions="sinusoidal",
    )
    settings: dict[str, Any] = dict(updates=1000, tokens_per_update=10**6, microbatches=1, warmup_updates=4000, label_smoothing=SMOOTHING)
    settings |= dict(
        adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9, checkpoint_every=1000, checkpoints_kept=1, patience=None, precision=precision
    )
    trainer = Trainer(TrainConfig(**settings), model, c["vocab"], 1, place)
    updates = []
    for pairs in batches:
        batch = collate(pairs)
        updates.append(Update([], batch.tokens, 1, {0: batch}))

    def step(number: int) -> None:
        trainer.update(updates[number])

    return step


def padded(sentences: list[list[int]]) -> Any:
    """One row a sentence. [B, longest] int64"""
    import torch

    longest = max(map(len, sentences))
    return torch.tensor([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences])


def plain(config: str, precision: str, device: str, batches: list[Pairs], marian: bool) -> Callable[[int], None]:
    """A model of PyTorch's or Hugging Face's as it comes, with cross entropy and Adam of PyTorch."""
    import torch
    from torch import nn

    c = CONFIGS[config]
    torch.manual_seed(1)
    data = []
    for pairs in batches:
        src = padded([source + [EOS] for source, _ in pairs])
        out = padded([target + [EOS] for _, target in pairs])
        into = padded([[BOS, *target] for _, target in pairs])
        data.append([tensor.to(device) for tensor in (src, into, out)])

    if marian:
        from transformers import MarianConfig, MarianMTModel

        sizes = {f"{side}_{key}": c[name] for side in ("encoder", "decoder") for key, name in (("layers", "layers"), ("ffn_dim", "d_ff"))}
        heads = {f"{side}_attention_heads": c["heads"] for side in ("encoder", "decoder")}
        shape = dict(vocab_size=c["vocab"], d_model=c["d_model"], dropout=DROPOUT, attention_dropout=0.0, activation_dropout=0.0)
        special = dict(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS, scale_embedding=True, activation_function="relu")
        model = MarianMTModel(MarianConfig(**shape, **sizes, **heads, **special))

        def logits(src: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
            return model(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=into, use_cache=False).logits

    else:
        model = nn.ModuleDict(
            dict(
                embedding=nn.Embedding(c["vocab"], c["d_model"]),
                transformer=nn.Transformer(c["d_model"], c["heads"], c["layers"], c["layers"], c["d_ff"], DROPOUT, batch_first=True),
            )
        )
        nn.init.normal_(model["embedding"].weight, std=c["d_model"] ** -0.5)
        angles = torch.arange(200)[:, None] / 10000 ** (torch.arange(0, c["d_model"], 2) / c["d_model"])
        positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1).to(device)

        def logits(src: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
            def embed(ids: torch.Tensor) -> torch.Tensor:
                x = model["embedding"](ids) * c["d_model"] ** 0.5 + positions[: ids.size(1)]
                return nn.functional.dropout(x, DROPOUT)

            causal = nn.Transformer.generate_square_subsequent_mask(into.size(1), device=into.device)
            states = model["transformer"](
                embed(src), embed(into), tgt_mask=causal, tgt_is_causal=True,
                src_key_padding_mask=src == PAD, memory_key_padding_mask=src == PAD,
            )  # fmt: skip
            return states @ model["embedding"].weight.T

    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9)

    def step(number: int) -> None:
        src, into, out = data[number]
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = logits(src, into)
        loss = nn.functional.cross_entropy(found.float().flatten(0, 1), out.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def work(contender: str, config: str, precision: str, device: str, tokens: int) -> None:
    """Print the seconds of each batch, the fastest of PASSES, and the peak memory in GiB as JSON."""
    batches = pairs_of(config, tokens)
    step = (
        ours(config, precision, device, batches)
        if contender == "ours"
        else plain(config, precision, device, batches, contender == "marian")
    )
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


def product_rate(precision: str, device: str) -> float:
    """Operations a second of a product of two matrices of 4096 x 4096 in `precision`, the best of several."""
    import torch

    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(4096, 4096, device=device).to(kind) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return float(2 * 4096**3 / best)


def main() -> None:
    """Run the contenders in turn and print what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default="small,base")
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", type=int, default=2000, help="target tokens of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--marian", metavar="PYTHON", help="an interpreter with torch and transformers")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options.device, options.tokens)
        return
    contenders = {"ours": sys.executable, "nn.Transformer": sys.executable} | ({"marian": options.marian} if options.marian else {})
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
            peak = product_rate(precision, options.device)
            used = sum(flop(config, pairs) for pairs in batches) / best["ours"].sum() / peak
            for contender, rate in rates.items():
                print(f"{config:5} {precision:8} {contender:14} {rate:10,.0f} target tokens/s   {memory[contender]:.2f} GiB")
            print(f"{config:5} {precision:8} ours uses {used:.0%} of the {peak / 1e12:.2f} TFLOP/s of a plain product")
            ratios += [
                f"{config:5} {precision:8} ours / {contender}: {rates['ours'] / rate:.2f}"
                for contender, rate in rates.items()
                if contender != "ours"
            ]
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
