"""Parsing of a parameter section into a frozen, strictly typed record, with errors that name the parameter.

Each component defines its own `Config` class beside its code; nothing here knows any of them.
A section has no defaults: every value stands in `params.yaml`, and a key too many is as wrong as one missing.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.errors import UserError
from nmt.wording import requirement


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
        found: dict[str, list[Any]] = {}  # of a value that may be of several kinds, what is wrong with it as each of them
        for details in error.errors():
            found.setdefault(_place(kind, details, name), []).append(details)
        raise UserError("; ".join(f"{dotted} {_problem(kind, details)}" for dotted, details in found.items())) from None


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown `name`: the closest of `known`, or all of them when none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"


def _place(kind: type[Config], details: Any, name: str) -> str:
    """The dotted name of what is wrong."""
    location = details["loc"]
    match details["type"]:
        case "extra_forbidden":
            return _dotted(name, [*_walk(kind, location[:-1])[0], location[-1]])
        case "union_tag_not_found" | "union_tag_invalid":
            return _dotted(name, [*_walk(kind, location)[0], details["ctx"]["discriminator"].strip("'")])
    return _dotted(name, _walk(kind, location)[0])


def _problem(kind: type[Config], errors: Sequence[Any]) -> str:
    """What is wrong there."""
    details, context = errors[0], errors[0].get("ctx", {})
    shown = "a section" if isinstance(details["input"], Mapping) and details["input"] else repr(details["input"])
    match details["type"]:
        case "extra_forbidden":
            return f"is unknown: {nearest(str(details['loc'][-1]), _walk(kind, details['loc'][:-1])[1])}"
        case "missing" | "union_tag_not_found":
            return "is missing"
        case "model_type":
            return f"is {shown}: it must be a section, with {', '.join(_walk(kind, details['loc'])[1])} below it"
        case "union_tag_invalid":
            known = context["expected_tags"].replace("'", "").split(", ")
            return f"is {context['tag']!r}: {nearest(context['tag'], known)}"
        case "value_error":
            return f"cannot be so: {context['error']}"
    return f"is {shown}: it must be {requirement(errors)}"


def _dotted(name: str, parts: Sequence[object]) -> str:
    return ".".join(str(part) for part in [name, *parts] if part != "")


def _walk(kind: Any, location: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Follow pydantic's `location` from `kind` down: the names as they stand in the file, and the fields valid at its end.

    Where a field may be of several kinds, pydantic puts the one that it chose into the location; the file has no such name.
    """
    names: list[Any] = []
    for part in location:
        kind = _only_section(kind)
        if part == "[key]":  # what is wrong is the name before it
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names.append(part)
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        elif get_origin(kind) in (dict, list):
            names.append(part)
            kind = get_args(kind)[-1]
        elif kind is not None:
            sections = [a for a in map(_only_section, get_args(kind)) if isinstance(a, type) and issubclass(a, BaseModel)]
            kind = next((s for s in sections if "kind" in s.model_fields and part in get_args(s.model_fields["kind"].annotation)), None)
    kind = _only_section(kind)
    return names, list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _only_section(kind: Any) -> Any:
    """`kind` without annotations, and without the None of an optional section."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    others = [a for a in get_args(kind) if a is not type(None)]
    return others[0] if type(None) in get_args(kind) and len(others) == 1 else kind
