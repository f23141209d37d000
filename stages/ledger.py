"""For people: what cleaning dropped from the training text of a corpus, by rule, and the very pairs. Not a stage of the pipeline.

python -m stages.ledger demo                               how many, by rule and by part
python -m stages.ledger demo --rule duplicate --show 20    twenty of those pairs, spread over the text
"""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.markup import escape

from nmt.cleaning import RULES
from nmt.config import nearest
from nmt.errors import UserError
from nmt.languages import Languages
from nmt.lines import read_exact
from nmt.pairs import TRAIN
from stages import names, params
from stages.command import run

PARTS = 10  # of the most that a table names


def main(
    corpus: str,
    rule: Annotated[str | None, typer.Option(help=f"one of {', '.join(RULES)}; a final s may be added")] = None,
    show: Annotated[int, typer.Option(min=0, help="so many of the pairs")] = 0,
) -> None:
    """Print what was dropped. Raises UserError for an unknown rule, and when the corpus has not been cleaned yet."""
    languages = params.load(f"corpora.{names.check('corpora', corpus)}.languages", Languages)
    data = Path("data") / corpus
    if rule is not None and (rule := rule.removesuffix("s")) not in RULES:
        raise UserError(f"--rule {rule} is unknown: {nearest(rule, RULES)}")
    if not (data / "ledger.parquet").exists():
        raise UserError(f"{data / 'ledger.parquet'} is not there: run `dvc repro clean@{corpus}` first")
    ledger = pq.read_table(data / "ledger.parquet")
    if rule is not None:
        ledger = ledger.filter(pc.equal(ledger["rule"], rule))
    console = Console(highlight=False, soft_wrap=True)
    for column in ("rule", "file"):
        counts = Counter({count["values"].as_py(): count["counts"].as_py() for count in pc.value_counts(ledger[column])})
        console.print(f"[bold]{len(ledger):,} pairs dropped, by {column}[/bold]")
        for name, count in counts.most_common(PARTS):
            console.print(f"{count:>12,}  {escape(name)}")
        if len(counts) > PARTS:
            console.print(
                f"{sum(counts.values()) - sum(count for _, count in counts.most_common(PARTS)):>12,}  in {len(counts) - PARTS} more"
            )
    if show:
        _show(console, _spread(ledger, show), [data / "raw" / f"{TRAIN}.{code}" for code in (languages.src, languages.tgt)])


def _spread(ledger: Any, count: int) -> list[dict[str, Any]]:
    """At most `count` rows, evenly over the ledger."""
    count = min(count, len(ledger))
    return [ledger.slice(number * len(ledger) // count, 1).to_pylist()[0] for number in range(count)]


def _show(console: Console, rows: list[dict[str, Any]], texts: list[Path]) -> None:
    """Print the raw pairs of `rows`, which are in the order of the text."""
    pairs = zip(*map(read_exact, texts), strict=True)
    passed = 0
    for row in rows:
        src, tgt = next(islice(pairs, row["train_line"] - 1 - passed, None))
        passed = row["train_line"]
        where = f"{texts[0]}:{row['train_line']}[/dim], from {escape(row['file'])}"
        console.print(f"\n[dim]{where}: {row['rule']}\n  {escape(src)}\n  {escape(tgt)}")


if __name__ == "__main__":
    run(main)
