"""Figures for web pages: line charts that matplotlib draws and the page colours.

An SVG that stands inside a page takes part in its style sheet. So colours leave here as CSS variables, and a figure follows
the page into the dark; text leaves as text in the page's font. The same lines give the same bytes: no clock, fixed hashes.

    ink, grid          axes and words, lines of the grid
    series-1 … -6      the lines, in order; neighbours differ in their dashes too
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

WIDTH, HEIGHT = 336, 220  # CSS pixels: a phone's width, so that words keep their size there
SERIES = 6
VARIABLES = {"#000001": "ink", "#000002": "grid"} | {f"#00000{number + 2}": f"series-{number}" for number in range(1, SERIES + 1)}
COLOURS = {variable: colour for colour, variable in VARIABLES.items()}
DASHES = ("solid", (0, (4, 1.5)), (0, (1.2, 1.2)))
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nmt",
    "font.size": 9.5,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True)
class Line:
    """Points to be joined: `y[i]` at `x[i]`."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def chart(name: str, lines: Sequence[Line], x_label: str, log_y: bool = False) -> str:
    """An `<svg>` element with at most six `lines` over one axis. Its ids begin with `name`; the id `name`-caption describes it."""
    with style.context(["default", STYLE]):  # whatever the user's own settings are
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
        axes = figure.subplots()
        for index, line in enumerate(lines):
            few = len(line.x) <= 60  # then the points themselves can be seen
            colour, dashes = COLOURS[f"series-{index + 1}"], DASHES[index % len(DASHES)]
            axes.plot(line.x, line.y, label=line.label, color=colour, linestyle=dashes, marker="o" if few else "", markersize=2.6)
        _scale(axes, log_y)
        axes.set_xlabel(x_label)
        if len(lines) > 1:
            axes.legend(handlelength=2.2)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(written.getvalue(), name)


def short(value: float) -> str:
    """A number for an axis: 250, 0.0014, 1.2k, 300k, 4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _scale(axes: Axes, log_y: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _inline(svg: str, name: str) -> str:
    """What a page needs of a stand-alone file: the element without its head, size, name spaces and own style sheet."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"^<svg[^>]*>", f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-caption">', body)
    body = re.sub(r"font-family: [^;\"]*(; )?", "", body).replace("xlink:href", "href")
    body = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", body).strip()
