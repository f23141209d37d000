"""Stage clean: keeps of the raw training text what can be trained on, and accounts for every pair it drops.

cleaning.json
{"read": 5, "kept": 3, "dropped": {"blank": 1, "control": 0, …, "duplicate": 1},
 "changed": {"join_whitespace": 2},                        of the pairs kept
 "leaked": 0,                                              pairs kept whose source stands in valid or in a test set
 "parts": [{"name": "a.en", "read": 5, "kept": 3, "dropped": {"blank": 1, "duplicate": 1}}]}

`hardware.workers` processes or a Dask cluster share the work. A run that was stopped is taken up where it was.
"""

import json
import shutil
from pathlib import Path

from nmt.chunks import parallel_text
from nmt.cleaning import Cleaner, CleaningConfig
from nmt.cluster import shared
from nmt.code import digest, imported_files
from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.languages import Languages
from nmt.ledger import Ledger
from nmt.lines import read_exact
from nmt.outputs import whole_file, whole_folder
from nmt.pairs import TRAIN, VALID
from nmt.progress import Progress
from nmt.raw import read_manifest
from nmt.scratch import fingerprint, held
from nmt.sieve import Judge, find_duplicates, join
from stages import params
from stages.command import run

ROOT = Path(__file__).parent.parent
CHUNK = 20_000  # pairs that a process cleans at a time


def main(section: str, raw: Path, manifest: Path, clean: Path, ledger: Path, cleaning: Path) -> None:
    """Clean the training text in the folder `raw` by the rules in `section` of params.yaml; valid and test stay as they are."""
    config = params.load(f"{section}.cleaning", CleaningConfig)
    languages = params.load(f"{section}.languages", Languages)
    machine = params.load("hardware", HardwareConfig)
    held_out = [line for name in [VALID, *params.value(f"{section}.test")] for line in read_exact(raw / f"{name}.{languages.src}")]
    parts = read_manifest(manifest).sets[TRAIN].parts
    names = (f"{TRAIN}.{languages.src}", f"{TRAIN}.{languages.tgt}")
    text = parallel_text(raw / names[0], raw / names[1], CHUNK)
    state = {
        "out": str(clean.resolve()),
        "text": text.sha256,
        "every": CHUNK,
        "config": config.model_dump(),
        "held_out": held_out,
        "code": digest(imported_files("stages.clean", ROOT), ROOT),
    }
    with held(Path(machine.scratch).absolute() / "clean" / fingerprint(state)) as work:
        with Progress("clean", text.lines, "pairs") as progress:
            for done in shared(Judge(Cleaner(config, held_out, languages), text, work), text.chunks(), machine, work):
                progress.advance(done)
        duplicates = find_duplicates(text, work, config)
        with whole_folder(clean) as folder, whole_file(ledger) as ledger_file, whole_file(cleaning) as cleaning_file:
            with Ledger(ledger_file) as rows:
                account = join(text, work, parts, duplicates, (folder / names[0], folder / names[1]), rows)
            shutil.rmtree(work)
            if account["kept"] == 0:
                dropped = ", ".join(f"{count:,} {rule}" for rule, count in account["dropped"].items() if count)
                raise UserError(f"no training pair of {account['read']:,} is left ({dropped}): loosen {section}.cleaning")
            cleaning_file.write_text(json.dumps(account, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    run(main)
