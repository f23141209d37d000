"""Preparing data: pairs a second, memory, and how both grow with the corpus.

    python benchmarks/data.py                            0.1 and 1 million pairs
    python benchmarks/data.py --pairs 100000,1000000,10000000 --workers 1,2

Of a synthetic corpus (25 words a side by Zipf's law, every tenth pair a duplicate) the stages clean, tokenizer and shard are run as the
pipeline runs them. The tokenizer is trained on so many lines whatever the corpus. Memory is that of the process that took most of it,
the stage or one of its workers. The ratios are printed last: time of clean and shard, and memory, from one size to the next; and speed of
several workers to that of one.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
WORDS, LETTERS, EVERY = 60_000, "etaoinshrdlucmfwypvbgk", 50_000  # different words, letters of words, pairs made at a time
YAML_FILE = YAML(typ="safe", pure=True)


def vocabulary(seed: int) -> np.ndarray:
    """Words of 1 to 12 letters, the shorter ones first, as they are more frequent."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 13, WORDS))
    return np.array(["".join(rng.choice(list(LETTERS), length)) for length in lengths], dtype=object)


def pairs(count: int) -> Iterator[tuple[list[str], list[str]]]:
    """Sources and targets, many at a time."""
    rng, vocabularies = np.random.default_rng(1), (vocabulary(1), vocabulary(2))
    for first in range(0, count, EVERY):
        number = min(EVERY, count - first)
        lengths = rng.lognormal(np.log(25) - 0.125, 0.5, number).round().clip(3, 120).astype(int)
        sides = []
        for words in vocabularies:
            ids = (WORDS ** rng.random(lengths.sum()) - 1).astype(int)
            drawn = iter(words[ids].tolist())
            sides.append([" ".join([next(drawn) for _ in range(length)]) for length in lengths.tolist()])
        for side in sides:
            side[number - number // 10 :] = side[: number // 10]
        yield sides[0], sides[1]


def write_corpus(folder: Path, count: int) -> None:
    """raw/ and manifest.json, as `fetch` writes them."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    digests = {"xx": hashlib.sha256(), "yy": hashlib.sha256()}
    with (raw / "train.xx").open("wb") as src, (raw / "train.yy").open("wb") as tgt:
        for sides in pairs(count):
            for stream, digest, lines in zip((src, tgt), digests.values(), sides, strict=True):
                data = "".join(f"{line}\n" for line in lines).encode()
                stream.write(data)
                digest.update(data)
    for name in ("valid", "test"):
        for code in digests:
            (raw / f"{name}.{code}").write_text(f"{name} {code}\n" * 100)
    text = {
        "lines": count,
        "sha256": {code: digest.hexdigest() for code, digest in digests.items()},
        "parts": [{"name": "all", "lines": count}],
    }
    facts = {"languages": {"src": "xx", "tgt": "yy"}, "source": {}, "sets": {"train": text}, "counted": {}}
    (folder / "manifest.json").write_text(json.dumps(facts))


def write_params(folder: Path, workers: int, sample: int) -> None:
    """params.yaml of the project with one corpus, cleaned as wmt14-en-de is."""
    params = YAML_FILE.load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    corpus = params["corpora"]["wmt14-en-de"] | {"languages": {"src": "xx", "tgt": "yy"}, "test": ["test"]}
    corpus["tokenizer"] |= {"vocab_size": 32_000, "sample_lines": sample}
    YAML_FILE.dump({"corpora": {"synthetic": corpus}, "hardware": params["hardware"] | {"workers": workers}}, folder / "params.yaml")


def run(folder: Path, stage: str, *paths: str) -> tuple[float, float]:
    """Seconds, and MiB of the process that took most memory; a child of our own measures it."""
    watch = (
        "import resource, subprocess, sys, time; began = time.monotonic(); "
        "subprocess.run([sys.executable, '-m', *sys.argv[1:]], check=True, stderr=subprocess.DEVNULL); "
        "print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", watch, f"stages.{stage}", "corpora.synthetic", *paths]
    seconds, memory = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(memory)


def measure(folder: Path, workers: int, sample: int) -> dict[str, tuple[float, float]]:
    """Seconds and MiB by stage."""
    write_params(folder, workers, sample)
    return {
        "clean": run(folder, "clean", "raw", "manifest.json", "clean", "ledger.parquet", "cleaning.json"),
        "tokenizer": run(folder, "tokenizer", "clean", "tokenizer.model", "tokenizer.json"),
        "shard": run(folder, "shard", "clean", "raw", "tokenizer.model", "shards", "statistics.json"),
    }


def main() -> None:
    """Measure every size with every number of workers, then print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="100000,1000000")
    parser.add_argument("--workers", default=str(len(os.sched_getaffinity(0))))
    parser.add_argument("--sample", type=int, default=200_000, help="lines that the tokenizer is trained on")
    options = parser.parse_args()
    found: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    for count in map(int, options.pairs.split(",")):
        with tempfile.TemporaryDirectory() as temporary:
            write_corpus(Path(temporary), count)
            for workers in map(int, options.workers.split(",")):
                stages = found[count, workers] = measure(Path(temporary), workers, options.sample)
                rates = ", ".join(
                    f"{stage} {count / seconds:,.0f} pairs/s, {memory:,.0f} MiB" for stage, (seconds, memory) in stages.items()
                )
                print(f"{count:,} pairs, {workers} workers: {rates}; clean and shard {count / together(stages):,.0f} pairs/s", flush=True)
    sizes, counts = sorted({count for count, _ in found}), sorted({workers for _, workers in found})
    for small, large in zip(sizes, sizes[1:], strict=False):
        for workers in counts:
            before, after = found[small, workers], found[large, workers]
            memory = ", ".join(f"{stage} {after[stage][1] / before[stage][1]:.2f}" for stage in after)
            print(f"{workers} workers, {small:,} to {large:,}: time x {together(after) / together(before):.2f}, memory x {memory}")
    for size in sizes:
        for workers in counts[1:]:
            gain = together(found[size, counts[0]]) / together(found[size, workers])
            print(f"{size:,} pairs: {workers} workers are {gain:.2f} x {counts[0]}")


def together(stages: dict[str, tuple[float, float]]) -> float:
    """Seconds of the stages that all pairs go through."""
    return stages["clean"][0] + stages["shard"][0]


if __name__ == "__main__":
    main()
