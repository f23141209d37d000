"""Stage fetch: brings the text of a corpus, checked by its SHA-256, and writes it by set and language, byte for byte."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from nmt.config import parse
from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.outputs import passing_folder, whole_file, whole_folder
from nmt.pairs import TRAIN, VALID, Counted
from nmt.raw import Manifest, TextSet, write_manifest, write_raw
from nmt.sources import Origin, check_corpus, held_out_test, open_source
from stages import params
from stages.command import run


def main(section: str, raw: Path, manifest: Path) -> None:
    """Check all parameters, then fetch the corpus in `section` of params.yaml."""
    checked = subprocess.run([sys.executable, "-m", "stages.check"]).returncode
    if checked != 0:
        sys.exit(checked)
    fetch(section, raw, manifest)


def fetch(section: str, raw: Path, manifest: Path) -> None:
    """Write the folder `raw` and the file `manifest` of one corpus, or, with a UserError, neither."""
    origin = parse(Origin, {name: params.value(f"{section}.{name}") for name in Origin.model_fields}, section)
    check_corpus(section, origin.source, origin.held_out, origin.test)
    machine = params.load("hardware", HardwareConfig)
    counted = Counted()
    with passing_folder(raw.with_name(raw.name + ".work")) as work:
        facts, pairs = open_source(origin, Path(machine.scratch) / "downloads", work, counted, machine.mirrors)
        with whole_folder(raw) as folder, whole_file(manifest) as file:
            languages = (origin.languages.src, origin.languages.tgt)
            sets = write_raw(pairs, folder, languages, [TRAIN, VALID, *origin.test])
            _refuse_small_sets(section, sets, origin)
            write_manifest(file, Manifest(languages=origin.languages.model_dump(), source=facts, sets=sets, counted=asdict(counted)))


def _refuse_small_sets(section: str, sets: dict[str, TextSet], origin: Origin) -> None:
    held_out = origin.held_out
    for name, text in sets.items():
        if text.lines == 0:
            raise UserError(f"{section}: no pair is left for {name}: give the source more text or change {section}.held_out")
        if held_out is not None and held_out.test > 0 and name == held_out_test(origin) and text.lines < held_out.min_test_lines:
            raise UserError(
                f"{section}: the held out {name} has {text.lines:,} pairs, fewer than min_test_lines, {held_out.min_test_lines:,}: "
                f"raise {section}.held_out.test or accept fewer"
            )


if __name__ == "__main__":
    run(main)
