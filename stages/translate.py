"""Stage `translate`: the sources of the validation set and of every test set to translations, best and n-best.

<set>.txt           one line a source line
<set>.nbest.jsonl   one JSON list a source line, best first: text, score, log_prob, tokens, finished

Stopped, it goes on where it was. Several processes, one for each GPU or as many as `hardware.processes` says, share the lines;
torchrun may start them as well.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from nmt import hardware
from nmt.languages import Languages
from nmt.lines import read_exact, write_lines
from nmt.outputs import whole_folder
from nmt.progress import Progress
from stages import params
from stages.command import run


def main(corpus: str, averaged: Path, raw: Path, translations: Path) -> None:
    """Translate the sets of the section `corpus`, found in the folder `raw`, with the model folder `averaged`."""
    machine = params.load("hardware", hardware.HardwareConfig)
    device = hardware.prepare(machine)
    import torch

    from nmt import launch
    from nmt.bundle import load_bundle
    from nmt.pieces import finish, finished, progress_of, unfinished
    from nmt.ranks import is_rank, joined
    from nmt.search import DecodeConfig
    from nmt.translation import Translation, Translator, best, near_ties

    gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    processes = gpus if machine.processes == "auto" else machine.processes
    if processes > 1 and not is_rank():
        launch.start(processes, "stages.translate", sys.argv[1:], [])
        return
    config = params.load("decode", DecodeConfig)
    languages = params.load(f"{corpus}.languages", Languages)
    sources = {name: raw / f"{name}.{languages.src}" for name in ("valid", *params.value(f"{corpus}.test"))}
    bundle = load_bundle(averaged)
    translator = Translator(bundle, config, device, machine.decode_tokens, hardware.compiles(machine))
    scratch = Path(machine.scratch) / "translate"
    with joined(device, machine.patience) as ranks, unfinished(scratch, [bundle], config, list(sources.values()), ranks) as pieces:
        if ranks.first:
            hardware.warn_where_slow(config.precision, device)
        counts = {}
        for name, source in sources.items():
            with progress_of(f"translate {name}", read_exact(source), ranks) as progress:

                def work(piece: list[str], first: int, progress: Progress = progress, source: Path = source) -> Iterator[str]:
                    for result in translator.translate(piece, config.beam_size, progress.advance_by, str(source), first):
                        yield json.dumps([asdict(translation) for translation in result], ensure_ascii=False)

                counts[name] = finish(pieces, name, read_exact(source), ranks, work, progress.skip)
        ranks.meet(0)
        if not ranks.first:
            return
        with whole_folder(translations) as folder:
            for name, count in counts.items():

                def results(name: str = name, count: int = count) -> Iterator[list[Translation]]:
                    for line in finished(pieces, name, count):
                        yield [Translation(**fields) for fields in json.loads(line)]

                lines = write_lines(folder / f"{name}.txt", map(best, results()))
                write_lines(folder / f"{name}.nbest.jsonl", finished(pieces, name, count))
                ties = near_ties(results())
                if ties:
                    print(f"translate {name}: {ties:,} of {lines:,} lines have a second best within rounding of the best", file=sys.stderr)
    shutil.rmtree(pieces)


if __name__ == "__main__":
    run(main)
