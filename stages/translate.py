"""Stage `translate`: the sources of the validation set and of every test set to translations, best and n-best.

<set>.txt           one line a source line
<set>.nbest.jsonl   one JSON list a source line, best first: text, score, log_prob, tokens, finished
"""

import json
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
    from nmt.bundle import load_bundle
    from nmt.search import DecodeConfig
    from nmt.translation import Translator, best

    config = params.load("decode", DecodeConfig)
    hardware.warn_where_slow(config.precision, device)
    languages = params.load(f"{corpus}.languages", Languages)
    translator = Translator(load_bundle(averaged), config, device, machine.decode_tokens)
    with whole_folder(translations) as folder:
        for name in ("valid", *params.value(f"{corpus}.test")):
            source = raw / f"{name}.{languages.src}"
            lines = list(read_exact(source))
            with Progress(f"translate {name}", len(lines), "lines") as progress:
                results = translator.translate(lines, config.beam_size, progress.advance, str(source))
            write_lines(folder / f"{name}.txt", map(best, results))
            write_lines(folder / f"{name}.nbest.jsonl", (json.dumps([asdict(t) for t in result], ensure_ascii=False) for result in results))


if __name__ == "__main__":
    run(main)
