"""Templates get escaped text, the shared style, and stop at what they do not know."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from nmt.pages import flat, render


def page(folder: Path, template: str, **facts: object) -> str:
    (folder / "style.css").write_text("b { color: red; }")
    (folder / "page.j2").write_text(template)
    return render(folder / "page.j2", **facts)


def test_text_is_escaped_and_the_style_stands_in_the_page(tmp_path: Path) -> None:
    text = page(tmp_path, '<style>{% include "style.css" %}</style>{{ name }}', name="<i> & </i>")
    assert text == "<style>b { color: red; }</style>&lt;i&gt; &amp; &lt;/i&gt;"


def test_words_that_differ_and_flat_values_are_there_for_templates(tmp_path: Path) -> None:
    assert (
        page(tmp_path, "{{ differences('a b', 'a c') | length }}{{ values | flat | list | length }}", values={"a": {"b": 1, "c": 2}})
        == "22"
    )
    assert list(flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == [("a.b", 1), ("a.c.d", 2), ("e", 3)]


def test_a_fact_that_is_missing_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError):
        page(tmp_path, "{{ missing }}")
