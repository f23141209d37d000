"""For people: one page over all models of the workspace, each with its scores and the way to its report. Not a stage of the pipeline.

python -m stages.index            writes runs/index.html
"""

import csv
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.errors import UserError
from nmt.figures import SERIES, Line, chart
from nmt.json_files import read_object
from nmt.outputs import whole_file
from nmt.pages import render
from nmt.published import BLEU, METRIC
from stages.command import run

TEMPLATE = Path(__file__).with_name("index.html.j2")


def main(runs: Annotated[Path, typer.Argument(help="the folder of the runs")] = Path("runs")) -> None:
    """Write the page of all <corpus>/<variant>/scores.json in the folder. Raises UserError when there is none."""
    found = [read_run(path.parent) for path in sorted(runs.glob("*/*/scores.json"))]
    if not found:
        raise UserError(f"{runs} holds no scores: run `dvc repro` first")
    page = runs / "index.html"
    curves = [Line(one["name"], *one["curve"]) for one in found if one["curve"][0]]
    figure = chart("curves", curves[:SERIES], "update", log_y=True) if curves else None
    with whole_file(page) as file:
        file.write_text(render(TEMPLATE, runs=found, figure=figure), encoding="utf-8", newline="\n")
    print(f"page: {page}")


def read_run(folder: Path) -> dict[str, Any]:
    """What the page says of a model: its name, config, sets, BLEU beside the paper's, perplexity, and its curve on valid over updates."""
    scores = read_object(folder / "scores.json", "sets", "perplexity")
    config = folder / "averaged" / "config.json"
    return {
        "name": f"{folder.parent.name} {folder.name}",
        "report": f"{folder.parent.name}/{folder.name}/report.html" if (folder / "report.html").exists() else None,
        "config": read_object(config) if config.exists() else {},
        "tests": {name: found for name, found in scores["sets"].items() if name != "valid"},
        "paper": [
            (name, found[METRIC]["score"], BLEU[folder.parent.name, folder.name][name])
            for name, found in scores["sets"].items()
            if name in BLEU.get((folder.parent.name, folder.name), {}) and METRIC in found
        ],
        "perplexity": scores["perplexity"]["average"],
        "curve": read_curve(folder / "training.tsv"),
    }


def read_curve(path: Path) -> tuple[list[float], list[float]]:
    """Updates and the perplexity on valid that was measured there; nothing where there is no table."""
    if not path.exists():
        return [], []
    with path.open(encoding="utf-8", newline="") as stream:
        points = [
            (float(row["update"]), float(row["valid_perplexity"]))
            for row in csv.DictReader(stream, delimiter="\t")
            if row["valid_perplexity"]
        ]
    return [x for x, _ in points], [y for _, y in points]


if __name__ == "__main__":
    run(main)
