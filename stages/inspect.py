"""For people: the very sentences of update N of a training, and how they are cut into pieces. Not a stage of the pipeline.

python -m stages.inspect demo tiny --update 1200
"""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from nmt.errors import UserError
from stages import names, params
from stages.command import run


def main(corpus: str, variant: str, update: Annotated[int, typer.Option(min=1, help="1 is the first")]) -> None:
    """Print the pairs of one update: shard and row, source, target. Raises UserError when the corpus has not been sharded yet."""
    from nmt.batches import updates
    from nmt.shards import read_shard, shard_files
    from nmt.symbols import PAD
    from nmt.tokenizer import Tokenizer
    from nmt.training import TrainConfig

    config = params.load(f"variants.{names.check('variants', variant)}.train", TrainConfig)
    names.check("corpora", corpus)
    data = Path("data") / corpus
    if not (data / "shards" / "train").is_dir():
        raise UserError(f"{data / 'shards'} is not there: run `dvc repro shard@{corpus}` first")
    tokenizer = Tokenizer.load(data / "tokenizer.model")
    shards = [read_shard(file) for file in shard_files(data / "shards" / "train")]
    found = next(updates(data / "shards" / "train", config.tokens_per_update, config.microbatches, params.seed(), after=update - 1))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]update {update}[/bold]: {len(found.pairs)} pairs, {found.tokens} target tokens, {found.count} pieces")
    pairs = iter(found.pairs)
    for number, batch in found.pieces.items():
        rows = int((batch.tgt_out[:, 0] != PAD).sum())
        padding = 1 - batch.tokens / batch.tgt_out.numel()
        shape = f"source {batch.src.size(1)} wide, target {batch.tgt_out.size(1)} wide, {padding:.0%} of it padding"
        console.print(f"\n[bold]piece {number}[/bold]: {rows} pairs, {batch.tokens} target tokens, {shape}")
        for shard, row in islice(pairs, rows):
            src, tgt = (tokenizer.decode(side[row].tolist()) for side in (shards[shard].src, shards[shard].tgt))
            console.print(f"[dim]{shard}:{row}[/dim] {escape(src)} [dim]|||[/dim] {escape(tgt)}")


if __name__ == "__main__":
    run(main)
