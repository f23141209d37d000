"""Figures for web pages and files: lines and maps that matplotlib draws and the page, or `picture`, colours.

An SVG that stands inside a page takes part in its style sheet. So colours leave here as CSS variables, and a figure follows
the page into the dark; text leaves as text in the page's font. The same lines give the same bytes: no clock, fixed hashes.

    ink, grid          axes and words, lines of the grid
    series-1 … -6      the lines, in order; neighbours differ in their dashes too
"""

import io
import re
import warnings
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
SERIES_ON_WHITE = ("#1c5d99", "#b9500f", "#2f7a4f", "#8a3f8f", "#6b6a12", "#a8324a")
ON_WHITE = {"ink": "#23262b", "grid": "#d9d8d3"} | {f"series-{number}": colour for number, colour in enumerate(SERIES_ON_WHITE, 1)}
CELL = 14.0  # of a labelled map, so that each label has its line
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


@dataclass(frozen=True)
class Map:
    """A number at each place of a grid, to be shown as a colour. With labels there is one for each row or column, else they are counted."""

    title: str
    values: Any  # array [rows, columns]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


def chart(name: str, lines: Sequence[Line], x_label: str, log_y: bool = False, log_x: bool = False) -> str:
    """An `<svg>` element with at most six `lines` over one axis. Its ids begin with `name`; the id `name`-caption describes it."""
    return inline(line_figure(lines, x_label, log_y, log_x), name)


def line_figure(
    lines: Sequence[Line],
    x_label: str,
    log_y: bool = False,
    log_x: bool = False,
    from_zero: bool = True,
    marks: Sequence[tuple[float, str]] = (),
    title: str = "",
) -> Figure:
    """At most six `lines` over one axis, and at some places of it `marks` with their words."""
    with style.context(["default", STYLE]):  # whatever the user's own settings are
        figure = Figure(figsize=(WIDTH / 72, (HEIGHT + (24 if title else 0)) / 72), layout="constrained")
        axes = figure.subplots()
        for index, line in enumerate(lines):
            few = len(line.x) <= 60  # then the points themselves can be seen
            colour, dashes = COLOURS[f"series-{index + 1}"], DASHES[index % len(DASHES)]
            axes.plot(line.x, line.y, label=line.label, color=colour, linestyle=dashes, marker="o" if few else "", markersize=2.6)
        for index, (place, words) in enumerate(marks):
            axes.axvline(place, label=words, color=COLOURS["ink"], linestyle=DASHES[(index + 2) % len(DASHES)], linewidth=1)
        _scale(axes, log_y, log_x, from_zero)
        axes.set_xlabel(x_label)
        axes.set_title(title, fontsize=10)
        if marks:  # they run through the whole height, so the words stand below
            figure.legend(loc="outside lower center", ncols=2, handlelength=2.2)
        elif len(lines) > 1:
            axes.legend(handlelength=2.2)
    return figure


def map_figure(maps: Sequence[Map], x_label: str, y_label: str, signed: bool = False, across: int = 1, title: str = "") -> Figure:
    """Maps of one size, `across` of them side by side, with one scale of colours: 0 to 1, or where `signed` -1 to 1."""
    down, (high, wide) = -(-len(maps) // across), maps[0].values.shape
    labelled = bool(maps[0].columns or maps[0].rows)
    cell = CELL if labelled else 0.0
    panel_width, panel_height = max(cell * wide, (WIDTH - 90) / across), max(cell * high, (HEIGHT - 70) / down if labelled else HEIGHT - 90)
    names = [max((len(label) for label in labels), default=0) * 6.0 for labels in (maps[0].rows, maps[0].columns)]
    with style.context(["default", STYLE, {"axes.grid": False}]):
        size = (across * (panel_width + 12) + names[0] + 100, down * (panel_height + 26) + names[1] + 50 + (24 if title else 0))
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for axes in grid.flat[len(maps) :]:
            axes.set_axis_off()
        for number, (axes, shown) in enumerate(zip(grid.flat, maps, strict=False)):
            image = axes.imshow(
                shown.values, cmap="RdBu_r" if signed else "Blues", vmin=-1 if signed else 0, vmax=1, aspect="auto", interpolation="none"
            )
            axes.set_title(shown.title, fontsize=9.5)
            if shown.columns:
                axes.set_xticks(range(wide), shown.columns, rotation=90)
            if shown.rows:
                axes.set_yticks(range(high), shown.rows)
            axes.tick_params(labelbottom=number + across >= len(maps))
        figure.supxlabel(x_label, fontsize=9.5)
        figure.supylabel(y_label, fontsize=9.5)
        figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.8, pad=0.01)
        if title:
            figure.suptitle(title, fontsize=10)
    return figure


def inline(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element for a page that colours it. Its ids begin with `name`; the id `name`-caption describes it."""
    body = _svg(figure)
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", body, flags=re.DOTALL)
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    body = re.sub(r"^<svg[^>]*>", f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-caption">', body)
    body = re.sub(r"font-family: [^;\"]*(; )?", "", body).replace("xlink:href", "href")
    body = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", body).strip()


def picture(figure: Figure) -> str:
    """The figure as an SVG file that stands alone, on white, its text as text."""
    body = _svg(figure)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, ON_WHITE[variable])
    return body.replace("<defs>", '<rect width="100%" height="100%" fill="#ffffff"/>\n <defs>', 1)


def short(value: float) -> str:
    """A number for an axis: 250, 0.0014, 1.2k, 300k, 4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _scale(axes: Axes, log_y: bool, log_x: bool, from_zero: bool) -> None:
    if log_x:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5) if high < 1000 * low else (1,), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _svg(figure: Figure) -> str:
    written = io.StringIO()
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # text leaves as text, for the reader's own fonts
        figure.savefig(written, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return written.getvalue()
