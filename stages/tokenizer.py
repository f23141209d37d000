"""Stage `tokenizer`: the cleaned training text of both languages to one SentencePiece model."""

from collections.abc import Iterator
from pathlib import Path

from nmt.languages import Languages
from nmt.lines import read_exact
from nmt.outputs import whole_file
from nmt.progress import Progress
from nmt.tokenizer import TokenizerConfig, sample, train_tokenizer
from stages import params
from stages.command import run


def main(corpus: str, clean: Path, model: Path) -> None:
    """Train the tokenizer of the section `corpus` on the folder `clean`; write `model`."""
    section = f"{corpus}.tokenizer"
    config = params.load(section, TokenizerConfig)
    languages = params.load(f"{corpus}.languages", Languages)
    files = [clean / f"train.{language}" for language in (languages.src, languages.tgt)]
    with Progress("tokenizer", None, "lines") as progress:

        def counted() -> Iterator[str]:
            for line in sample(files, read_exact, config.sample_lines):
                progress.advance()
                yield line

        content = train_tokenizer(counted(), config, section)
    with whole_file(model) as building:
        building.write_bytes(content)


if __name__ == "__main__":
    run(main)
