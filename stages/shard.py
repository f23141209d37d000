"""Stage `shard`: cleaned training text and raw validation text to token ids on disk, and what they are made of.

statistics.json, for train and valid: pairs, and by side
{"words": 9, "characters": 51, "pieces": 13, "pieces_per_word": 1.4444, "byte_pieces": 0, "vocabulary_used": 11,
 "longest": 7, "lengths": [2],                             lines of 0 to 9 pieces, of 10 to 19, …, of 200 and more
 "checked": 1, "altered": 0}                               one line of a hundred is decoded again: does it come back?

With `subword_sampling` the training text comes a second time, in other pieces for each epoch, below shards/train; statistics.json then has
"sampled": {"epochs": 8, "src": 1.21, "tgt": 1.19}        times as many pieces, in the mean

`hardware.workers` processes share the work. A run that was stopped is taken up where it was.
"""

import json
import shutil
from pathlib import Path

from nmt.chunks import parallel_text
from nmt.code import digest, imported_files
from nmt.encoding import Encoder, Gatherer, statistics
from nmt.hardware import HardwareConfig
from nmt.languages import Languages
from nmt.outputs import whole_file, whole_folder
from nmt.progress import Progress
from nmt.resampling import Resampler, Sampling
from nmt.scratch import fingerprint, held, link_or_copy
from nmt.shards import PAIRS_PER_SHARD, SIDES, read_shard, shard_files
from nmt.tokenizer import Tokenizer
from nmt.workers import ordered, worker_count
from stages import params
from stages.command import run

ROOT = Path(__file__).parent.parent
CHUNK = 20_000  # pairs that a process encodes at a time


def main(corpus: str, clean: Path, raw: Path, tokenizer: Path, shards: Path, statistics_file: Path) -> None:
    """Tokenize `clean`/train and `raw`/valid of the section `corpus`; write the folders `shards`/train and `shards`/valid."""
    languages = params.load(f"{corpus}.languages", Languages)
    machine = params.load("hardware", HardwareConfig)
    workers = worker_count(machine.workers)
    section = f"{corpus}.subword_sampling"
    sampling = None if params.value(section) is None else params.load(section, Sampling)
    pieces = Tokenizer.load(tokenizer)
    code = digest(imported_files("stages.shard", ROOT), ROOT)
    found = {}
    with whole_folder(shards) as building, whole_file(statistics_file) as file:
        for name, folder in (("train", clean), ("valid", raw)):
            text = parallel_text(folder / f"{name}.{languages.src}", folder / f"{name}.{languages.tgt}", CHUNK)
            size = PAIRS_PER_SHARD
            state = {
                "out": str(shards.resolve()),
                "text": text.sha256,
                "tokenizer": pieces.sha256,
                "every": CHUNK,
                "size": size,
                "sampling": sampling.model_dump() if sampling else None,
                "code": code,
            }
            with held(Path(machine.scratch) / "shard" / fingerprint(state)) as work:
                encoder = Encoder(pieces, text, -(-text.lines // size), work)
                with Progress(f"encode {name}", text.lines, "pairs") as progress:
                    for pairs in ordered(encoder, text.chunks(), workers):
                        progress.advance(pairs)
                (building / name).mkdir()
                with Progress(f"shard {name}", text.lines, "pairs") as progress:
                    for pairs in ordered(Gatherer(encoder, building / name), range(encoder.shards), workers):
                        progress.advance(pairs)
                found[name] = statistics(encoder)
                if sampling and name == "train":
                    resampler = Resampler(pieces, params.value(f"{corpus}.tokenizer.type"), sampling, work)
                    found[name]["sampled"] = _sampled(resampler, building / name, workers)
                shutil.rmtree(work)
        file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _sampled(resampler: Resampler, folder: Path, workers: int) -> dict[str, float]:
    """Have each epoch's pieces of the shards of `folder` drawn, and laid into it. Returns how many times as many they are."""
    tasks, epochs = resampler.tasks(folder), resampler.config.epochs
    drawn = {side: 0 for side in SIDES}
    with Progress("draw other pieces", len(tasks), "shards") as progress:
        for counts in ordered(resampler, tasks, workers):
            for side, count in zip(SIDES, counts, strict=True):
                drawn[side] += count
            progress.advance(1)
    for epoch, path in tasks:
        file = Path(f"sampled-{epoch:03}", path.name)
        (folder / file).parent.mkdir(exist_ok=True)
        link_or_copy(resampler.out / file, folder / file)
    shards = [read_shard(path) for path in shard_files(folder)]
    plain = {"src": sum(len(shard.src.ids) for shard in shards), "tgt": sum(len(shard.tgt.ids) for shard in shards)}
    return {"epochs": epochs} | {side: round(drawn[side] / max(1, epochs * plain[side]), 4) for side in SIDES}


if __name__ == "__main__":
    run(main)
