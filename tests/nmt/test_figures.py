"""Figures fit into a page: no address, no colour of their own, no shared id, the same bytes every time."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

from nmt.figures import Line, chart, short

LINES = [Line("training", [1, 2, 3], [9.0, 4.0, 1.0]), Line("valid", [1, 3], [8.0, 2.0])]


def test_a_chart_is_one_element_described_by_its_caption() -> None:
    element = ElementTree.fromstring(chart("loss", LINES, "update"))
    assert element.tag == "svg"
    assert element.attrib["aria-labelledby"] == "loss-caption"
    assert {"training", "valid", "update"} <= set(element.itertext())


def test_nothing_points_outside_the_page() -> None:
    svg = chart("loss", LINES, "update")
    assert "http" not in svg and "xmlns" not in svg and "font-family" not in svg
    ids = set(re.findall(r'id="([^"]+)"', svg))
    assert all(name.startswith("loss-") for name in ids)
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)) != set()
    assert {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)} <= ids


def test_every_colour_is_one_of_the_page() -> None:
    svg = chart("loss", LINES, "update")
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", svg)) == {
        "none",
        "var(--ink)",
        "var(--grid)",
        "var(--series-1)",
        "var(--series-2)",
    }


@pytest.mark.parametrize("log_y", [False, True])
def test_the_bytes_do_not_depend_on_run_or_user(log_y: bool) -> None:
    first = chart("loss", LINES, "update", log_y)
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": "other"}):
        assert chart("loss", LINES, "update", log_y) == first


def test_a_higher_value_is_drawn_higher() -> None:
    svg = chart("loss", [Line("", [0, 1, 2], [1.0, 5.0, 3.0])], "update")
    (points,) = re.findall(r'<path d="M ([^"z]+?)"[^>]*var\(--series-1\)[^>]*stroke-width: 1.6', svg)
    start, top, end = (float(point.split()[1]) for point in points.split("L"))
    assert top < end < start
    assert (start - end) / (start - top) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (250, "250"), (0.0014, "0.0014"), (1500, "1.5k"), (300000, "300k"), (4e6, "4M")])
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert short(value) == text
