"""For people: the page of a comparison that `python -m pipelines.compare` found. Not a stage of the pipeline; it calls this.

python -m stages.comparison comparison/comparison.json comparison/comparison.html
"""

from pathlib import Path
from typing import Any

from nmt.figures import SERIES, Line, chart
from nmt.json_files import read_object
from nmt.outputs import whole_file
from nmt.pages import render
from stages.command import run

TEMPLATE = Path(__file__).with_name("comparison.html.j2")
CHARTS = {
    "loss": ("Training loss", "nats per target token, smoothed labels", False),
    "valid_loss": ("Loss on valid", "nats per target token", False),
    "valid_perplexity": ("Perplexity on valid", "per piece", True),
    "bleu": ("BLEU on valid", "of each checkpoint", False),
    "learning_rate": ("Learning rate", "", False),
}


def main(facts: Path, page: Path) -> None:
    """Write the page of the document `facts`, which pipelines/comparison.py describes."""
    document: dict[str, Any] = read_object(facts, "sets", "sides")
    test = next(name for name in document["sets"] if name != "valid")
    text = render(TEMPLATE, document=document, test=test, charts=charts(document))
    with whole_file(page) as file:
        file.write_text(text, encoding="utf-8", newline="\n")


def charts(document: dict[str, Any]) -> list[dict[str, str]]:
    """A figure for each curve, all sides over each other; of more than six sides the first six."""
    names = [side["name"] for side in document["sides"]]
    found = []
    for curve, (title, unit, log) in CHARTS.items():
        lines = [Line(names[one["side"]], one["x"], one["y"]) for one in document["curves"].get(curve, [])[:SERIES]]
        if lines and not (curve == "learning_rate" and all(line.y == lines[0].y for line in lines)):
            found.append({"name": curve, "title": title, "unit": unit, "svg": chart(curve, lines, "update", log)})
    return found


if __name__ == "__main__":
    run(main)
