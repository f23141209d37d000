"""Stage clean: keeps of the raw training text what can be trained on, and accounts for every pair it drops.

cleaning.json
{"read": 5, "kept": 3, "dropped": {"blank": 1, "too_long": 0, …, "duplicate": 1},
 "changed": {"join_whitespace": 2},                        of the pairs kept
 "parts": [{"name": "a.en", "read": 5, "kept": 3}]}
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from nmt.cleaning import RULES, Cleaner, CleaningConfig, Ledger
from nmt.errors import UserError
from nmt.languages import Languages
from nmt.lines import read_exact
from nmt.outputs import whole_file, whole_folder
from nmt.pairs import TRAIN, VALID
from nmt.progress import Progress
from nmt.raw import Part, read_manifest
from stages import params
from stages.command import run


def main(section: str, raw: Path, manifest: Path, clean: Path, ledger: Path, cleaning: Path) -> None:
    """Clean the training text in the folder `raw` by the rules in `section` of params.yaml; valid and test stay as they are."""
    config = params.load(f"{section}.cleaning", CleaningConfig)
    languages = params.load(f"{section}.languages", Languages)
    held_out = (line for name in [VALID, *params.value(f"{section}.test")] for line in read_exact(raw / f"{name}.{languages.src}"))
    parts = read_manifest(manifest).sets[TRAIN].parts
    names = (f"{TRAIN}.{languages.src}", f"{TRAIN}.{languages.tgt}")
    pairs = zip(*(read_exact(raw / name) for name in names), strict=True)
    with whole_folder(clean) as folder, whole_file(ledger) as ledger_file, whole_file(cleaning) as cleaning_file:
        src, tgt = (folder / name for name in names)
        with Ledger(ledger_file) as rows, _text(src) as src_text, _text(tgt) as tgt_text:
            facts = _clean(pairs, parts, Cleaner(config, held_out), rows, (src_text, tgt_text))
        if facts["kept"] == 0:
            dropped = ", ".join(f"{count:,} {rule}" for rule, count in facts["dropped"].items() if count)
            raise UserError(f"no training pair of {facts['read']:,} is left ({dropped}): loosen {section}.cleaning")
        cleaning_file.write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", "utf-8")


def _text(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


def _clean(
    pairs: Iterator[tuple[str, str]], parts: Sequence[Part], cleaner: Cleaner, ledger: Ledger, texts: tuple[TextIO, TextIO]
) -> dict[str, Any]:
    """Judge all `pairs`, part by part, write those that are kept; returns the content of cleaning.json."""
    dropped = dict.fromkeys(RULES, 0)
    kept = [0] * len(parts)
    changed = 0
    with Progress("clean", sum(part.lines for part in parts), "pairs") as progress:
        for index, part in enumerate(parts):
            for number, pair in enumerate(islice(pairs, part.lines), start=1):
                src, tgt = map(cleaner.prepare, pair)
                rule = cleaner.rule(src, tgt)
                if rule is None:
                    kept[index] += 1
                    changed += (src, tgt) != pair
                    texts[0].write(src + "\n")
                    texts[1].write(tgt + "\n")
                else:
                    dropped[rule] += 1
                    ledger.drop(part.name, number, rule)
                progress.advance()
    read = sum(part.lines for part in parts)
    assert next(pairs, None) is None and sum(kept) + sum(dropped.values()) == read, "raw is not what its manifest says"
    return {
        "read": read,
        "kept": sum(kept),
        "dropped": dropped,
        "changed": {"join_whitespace": changed},
        "parts": [{"name": part.name, "read": part.lines, "kept": count} for part, count in zip(parts, kept, strict=True)],
    }


if __name__ == "__main__":
    run(main)
