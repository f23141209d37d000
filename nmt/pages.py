"""Pages that stand alone: style and figures in them, nothing fetched, no clock; the same facts give the same bytes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nmt.examples import differences


def render(template: Path, **facts: Any) -> str:
    """The page that `template` makes of these facts. All text is escaped; figures are elements already."""
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["flat"] = flat
    environment.globals["differences"] = differences
    return environment.get_template(template.name).render(**facts)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dictionaries, each with its dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
