"""Scores for people at a terminal: a row for each, a column for each set, and how each was computed."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

ROWS = (
    "bleu",
    "bleu_unseen",
    "bleu_uncased",
    "bleu_intl",
    "bleu_moses",
    "bleu_moses_split",
    "bleu_moses_split_quotes",
    "chrf",
    "chrf++",
    "ter",
    "comet",
)
LOOKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "length ratio": lambda found: f"{found['length_ratio']:.3f}",
    "blank": lambda found: f"{found['blank_lines']['hypothesis']:,}",
    "cut": lambda found: f"{found['unfinished']:,}" if "unfinished" in found else "unknown",
    "repeating": lambda found: f"{found['share_repeating']['hypothesis']:.1%}",
    "equal to source": lambda found: f"{found['share_equal_to_source']:.1%}" if found["words"]["source"] else "unknown",
}


def show(sets: dict[str, dict[str, Any]]) -> None:
    """Print what `nmt.evaluation.evaluate` says of each set, and below the table the signatures."""
    table = Table("", *(f"{name}, {found['lines']:,} lines" for name, found in sets.items()))
    for column in table.columns[1:]:
        column.justify = "right"
    signatures: dict[str, str] = {}
    for metric in ROWS:
        scores = [found[metric] for found in sets.values() if metric in found]
        if not scores:
            continue  # comet where it is off
        table.add_row(metric, *(f"{score['score']:.2f} ± {score['confidence']:.2f}" if score else "none" for score in scores))
        signatures |= {metric: scores[0]["signature"]} if scores[0] else {}
    for title, look in LOOKS.items():
        table.add_row(title, *map(look, sets.values()))
    console = Console(width=130)
    console.print(table)
    for metric, signature in signatures.items():
        console.print(f"{metric:23} {signature}", soft_wrap=True, highlight=False, markup=False)
