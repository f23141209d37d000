"""Stage `shard`: cleaned training text and raw validation text to token ids on disk."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from nmt.languages import Languages
from nmt.lines import read_exact
from nmt.outputs import whole_folder
from nmt.progress import Progress
from nmt.shards import write_shards
from nmt.tokenizer import Tokenizer
from stages import params
from stages.command import run

BATCH = 10_000  # lines given to SentencePiece at a time


def main(corpus: str, clean: Path, raw: Path, tokenizer: Path, shards: Path) -> None:
    """Tokenize `clean`/train and `raw`/valid of the section `corpus`; write the folders `shards`/train and `shards`/valid."""
    languages = params.load(f"{corpus}.languages", Languages)
    pieces = Tokenizer.load(tokenizer)
    with whole_folder(shards) as building:
        for name, folder in (("train", clean), ("valid", raw)):
            src, tgt = (read_exact(folder / f"{name}.{language}") for language in (languages.src, languages.tgt))
            with Progress(f"shard {name}", None, "pairs") as progress:
                write_shards(_encoded(src, tgt, pieces, progress), building / name, pieces.vocab_size, pieces.sha256)


def _encoded(src: Iterator[str], tgt: Iterator[str], tokenizer: Tokenizer, progress: Progress) -> Iterator[tuple[list[int], list[int]]]:
    while batch := list(islice(zip(src, tgt, strict=True), BATCH)):
        sides = [tokenizer.encode([pair[side] for pair in batch]) for side in (0, 1)]
        progress.advance(len(batch))
        yield from zip(*sides, strict=True)


if __name__ == "__main__":
    run(main)
