"""Stage `report`: one page about one model, for people: what was trained on what, how it went, and what it says.

The page needs nothing beside itself: style and figures stand in it, and nothing is fetched. It tells of its inputs alone, no clock,
machine or revision, so the same inputs give the same bytes. Its words and looks are in `report.html.j2`.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nmt.errors import UserError
from nmt.examples import Row, by_length, choose
from nmt.figures import Line, chart, inline
from nmt.json_files import read_object
from nmt.outputs import whole_file
from nmt.pages import render
from nmt.plots import of_formulas
from nmt.published import BLEU
from nmt.raw import read_manifest
from stages import params
from stages.command import run

TEMPLATE = Path(__file__).with_name("report.html.j2")
HISTOGRAM_BINS = 30
MAPS = 3
SHORTEST, LONGEST = 2, 16  # pieces of a line whose attention is shown, on each side
SIDES = ("source", "reference", "hypothesis")


def main(
    corpus: str,
    variant: str,
    manifest: Path,
    cleaning: Path,
    statistics: Path,
    training: Path,
    average: Path,
    averaged: Path,
    scores: Path,
    sentences: Path,
    report: Path,
) -> None:
    """Write the page about the model `variant` trained on `corpus`. Raises UserError when `training` is not the table it should be."""
    scored = read_object(scores)
    shown = next(name for name in scored["sets"] if name != "valid")
    rows: list[Row] = [row for row in pq.read_table(sentences).to_pylist() if row["set"] == shown]
    table = read_training(training)
    examples = choose(rows)
    page = render(
        TEMPLATE,
        corpus=corpus,
        variant=variant,
        manifest=read_manifest(manifest),
        cleaning=read_object(cleaning),
        statistics=read_object(statistics),
        average=read_object(average),
        config=read_object(averaged / "config.json"),
        decode=params.value("decode"),
        scores=scored,
        shown=shown,
        training=table,
        figures=training_figures(table) | {"lengths": length_figure(rows)},
        formulas=[(name, inline(figure, name), caption) for name, (figure, caption) in of_formulas(titles=False).items()],
        buckets=by_length(rows),
        examples=examples,
        attention=attention_maps(averaged, examples["drawn"]),
        paper={name: value for name, value in BLEU.get((corpus, variant), {}).items() if name in scored["sets"]},
    )
    with whole_file(report) as file:
        file.write_text(page, encoding="utf-8", newline="\n")


def attention_maps(averaged: Path, drawn: Sequence[Row]) -> list[dict[str, Any]]:
    """Where the model looks while it writes some of the `drawn` lines, each with the number of its line."""
    from nmt.attention_maps import attention_map  # torch takes a second to start
    from nmt.bundle import load_bundle

    bundle = load_bundle(averaged)
    found = []
    for row in drawn:
        sides = row["source"], row["hypothesis"]
        if all(SHORTEST <= len(ids) <= LONGEST for ids in bundle.tokenizer.encode(sides)):
            found.append({"line": row["line"], **asdict(attention_map(bundle, *sides))})
    return found[:MAPS]


def read_training(path: Path) -> dict[str, list[float | None]]:
    """The columns of training.tsv; None where nothing was measured. Raises UserError when it is no such table."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    try:
        columns: dict[str, list[float | None]] = {
            name: [float(row[name]) if row[name] else None for row in rows] for name in (rows[0] if rows else ())
        }
        for name in ("update", "loss", "perplexity", "valid_loss", "valid_perplexity", "learning_rate"):
            columns[name]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a table of a training ({error!r}): run the stage `train` again") from None
    return columns


def training_figures(table: dict[str, list[float | None]]) -> dict[str, str]:
    """Charts of loss, perplexity and learning rate over the updates, by name."""

    def line(label: str, column: str) -> Line:
        points = [(x, y) for x, y in zip(table["update"], table[column], strict=True) if x is not None and y is not None]
        return Line(label, [x for x, _ in points], [y for _, y in points])

    return {
        "loss": chart("loss", [line("training, smoothed labels", "loss"), line("valid", "valid_loss")], "update"),
        "perplexity": chart("perplexity", [line("training", "perplexity"), line("valid", "valid_perplexity")], "update", log_y=True),
        "rate": chart("rate", [line("learning rate", "learning_rate")], "update"),
    }


def length_figure(rows: Sequence[Row]) -> str:
    """A chart of how many lines have how many words, for source, reference and translation, the longest hundredth left out."""
    lengths = {side: [row[f"{side}_words"] for row in rows] for side in SIDES}
    ordered = sorted(length for side in lengths.values() for length in side)
    width = ordered[(len(ordered) - 1) * 99 // 100] // HISTOGRAM_BINS + 1
    lines = []
    for side, label in zip(SIDES, ("source", "reference", "translation"), strict=True):
        counts = Counter(min(length // width, HISTOGRAM_BINS) for length in lengths[side])
        bins = range(min(HISTOGRAM_BINS, max(counts) + 1))
        lines.append(Line(label, [bin * width + (width - 1) / 2 for bin in bins], [counts[bin] for bin in bins]))
    return chart("lengths", lines, "words" if width == 1 else f"words, {width} to a point")


if __name__ == "__main__":
    run(main)
