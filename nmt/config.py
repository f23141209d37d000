"""Parsing of a parameter section into a frozen, strictly typed record, with errors that name the parameter.

Each component defines its own `Config` class beside its code; nothing here knows any of them.
A section has no defaults: every value stands in `params.yaml`, and a key too many is as wrong as one missing.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.errors import UserError


class Config(BaseModel):
    """Base of all parameter sections: frozen, no unknown keys, no silent conversions (`"4"` is not `4`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


C = TypeVar("C", bound=Config)


def parse(kind: type[C], values: Any, name: str) -> C:
    """Parse `values`, the section called `name` in `params.yaml`, as a `kind`.

    Raises UserError that lists every wrong parameter by its dotted name, with the nearest valid name of an unknown one.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_explain(kind, details, name) for details in error.errors())
        raise UserError(problems) from None


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown `name`: the closest of `known`, or all of them when none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"


def _explain(kind: type[Config], details: Any, name: str) -> str:
    location = [str(part) for part in details["loc"]]
    dotted = ".".join([name, *location]) if name else ".".join(location)
    if details["type"] == "extra_forbidden":
        known = _fields_at(kind, location[:-1])
        return f"unknown parameter {dotted}: {nearest(location[-1], known)}"
    if details["type"] == "missing":
        return f"{dotted} is missing"
    if details["type"] == "value_error":
        return f"{dotted}: {details['ctx']['error']}"
    shown = "a section" if isinstance(details["input"], Mapping) else repr(details["input"])
    return f"{dotted} is {shown}: {details['msg'][0].lower()}{details['msg'][1:]}"


def _fields_at(kind: type[Config], location: Sequence[str]) -> list[str]:
    """Names of the fields that are valid at `location` below `kind`, or nothing where that cannot be told."""
    found: Any = kind
    for part in location:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(part)
            found = None if field is None else field.annotation
        else:
            candidates = [a for a in getattr(found, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
            tagged = [c for c in candidates if "kind" in c.model_fields and part in getattr(c.model_fields["kind"].annotation, "__args__", ())]
            found = (tagged or candidates or [None])[0]
    return list(found.model_fields) if isinstance(found, type) and issubclass(found, BaseModel) else []
