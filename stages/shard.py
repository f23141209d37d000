"""Stage `shard`: cleaned training text and raw validation text to token ids on disk, and what they are made of.

statistics.json, for train and valid: pairs, and by side
{"words": 9, "characters": 51, "pieces": 13, "pieces_per_word": 1.4444, "byte_pieces": 0, "vocabulary_used": 11,
 "longest": 7, "lengths": [2],                             lines of 0 to 9 pieces, of 10 to 19, …, of 200 and more
 "checked": 1, "altered": 0}                               one line of a hundred is decoded again: does it come back?

With `subword_sampling` the training text comes a second time, in other pieces for each epoch, below shards/train; statistics.json then has
"sampled": {"epochs": 8, "src": 1.21, "tgt": 1.19}        times as many pieces, in the mean

`hardware.workers` processes or a Dask cluster share the work. A run that was stopped is taken up where it was.
"""

import json
import shutil
from pathlib import Path

from nmt.chunks import parallel_text
from nmt.cluster import shared
from nmt.code import digest, imported_files
from nmt.encoding import Encoder, Gatherer, statistics
from nmt.hardware import HardwareConfig
from nmt.languages import Languages
from nmt.outputs import whole_file, whole_folder
from nmt.progress import Progress
from nmt.resampling import Resampler, Sampling
from nmt.scratch import fingerprint, held, link_or_copy
from nmt.shards import PAIRS_PER_SHARD, SIDES
from nmt.tokenizer import Tokenizer
from stages import params
from stages.command import run

ROOT = Path(__file__).parent.parent
CHUNK = 20_000  # pairs that a process encodes at a time


def main(corpus: str, clean: Path, raw: Path, tokenizer: Path, shards: Path, statistics_file: Path) -> None:
    """Tokenize `clean`/train and `raw`/valid of the section `corpus`; write the folders `shards`/train and `shards`/valid."""
    languages = params.load(f"{corpus}.languages", Languages)
    machine = params.load("hardware", HardwareConfig)
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
            with held(Path(machine.scratch).absolute() / "shard" / fingerprint(state)) as work:
                encoder = Encoder(pieces, text, -(-text.lines // size), work)
                with Progress(f"encode {name}", text.lines, "pairs") as progress:
                    for pairs in shared(encoder, text.chunks(), machine, work):
                        progress.advance(pairs)
                (building / name).mkdir()
                with Progress(f"shard {name}", encoder.shards, "shards") as progress:
                    for number, shard in enumerate(shared(Gatherer(encoder), range(encoder.shards), machine, work)):
                        link_or_copy(shard, building / name / f"{number:05}.arrow")
                        progress.advance()
                found[name] = statistics(encoder)
                if sampling and name == "train":
                    resampler = Resampler(pieces, params.value(f"{corpus}.tokenizer.type"), sampling, work)
                    drawn = _sampled(resampler, encoder.shards, building / name, machine)
                    found[name]["sampled"] = {"epochs": sampling.epochs} | {
                        side: round(drawn[side] / (sampling.epochs * max(1, found[name][side]["pieces"])), 4) for side in SIDES
                    }
                shutil.rmtree(work)
        file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _sampled(resampler: Resampler, shards: int, folder: Path, machine: HardwareConfig) -> dict[str, int]:
    """Have the epochs' pieces of so many shards drawn and laid into `folder`. Returns how many they are in all, by side."""
    tasks = [(epoch, shard) for epoch in range(resampler.config.epochs) for shard in range(shards)]
    drawn = dict.fromkeys(SIDES, 0)
    with Progress("draw other pieces", len(tasks), "shards") as progress:
        for (epoch, shard), counts in zip(tasks, shared(resampler, tasks, machine, resampler.work), strict=True):
            for side, count in zip(SIDES, counts, strict=True):
                drawn[side] += count
            epoch_folder = folder / f"sampled-{epoch:03}"
            epoch_folder.mkdir(exist_ok=True)
            link_or_copy(resampler.drawn(epoch, shard), epoch_folder / f"{shard:05}.arrow")
            progress.advance()
    return drawn


if __name__ == "__main__":
    run(main)
