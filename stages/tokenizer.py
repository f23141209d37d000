"""Stage `tokenizer`: the cleaned training text of both languages to one SentencePiece model, and how much of it that was trained on.

tokenizer.json
{"lines": 68006, "sampled": 68006, "characters": 2687402, "skipped": 0, "skipped_characters": 0, "share": 1.0}    share: of the lines
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from nmt.languages import Languages
from nmt.outputs import whole_file
from nmt.progress import Progress
from nmt.sampling import Sampled, sample
from nmt.tokenizer import TokenizerConfig, train_tokenizer
from stages import params
from stages.command import run


def main(corpus: str, clean: Path, model: Path, facts: Path) -> None:
    """Train the tokenizer of the section `corpus` on the folder `clean`; write `model`, and `facts` about its text."""
    section = f"{corpus}.tokenizer"
    config = params.load(section, TokenizerConfig)
    languages = params.load(f"{corpus}.languages", Languages)
    files = [clean / f"train.{language}" for language in (languages.src, languages.tgt)]
    counts = Sampled()
    with Progress("tokenizer", None, "lines") as progress:

        def counted() -> Iterator[str]:
            for line in sample(files, config.sample_lines, counts):
                progress.advance()
                yield line

        content = train_tokenizer(counted(), config, section)
    with whole_file(model) as building, whole_file(facts) as file:
        building.write_bytes(content)
        file.write_text(json.dumps(asdict(counts) | {"share": round(counts.sampled / counts.lines, 6)}) + "\n", "utf-8")


if __name__ == "__main__":
    run(main)
