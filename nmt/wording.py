"""What pydantic finds wrong with a value, in words that fit behind "must be": for parameters, and for what a service is asked.

greater_than_equal, {"ge": 1}             ->  at least 1
literal_error, {"expected": "'auto'"}     ->  auto
"""

from collections.abc import Iterable, Mapping
from typing import Any

KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section with names below it",
    "finite_number": "a finite number",
}
BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
HOLDERS = {"List": "a list of at least", "Dictionary": "a section of at least"}


def requirement(errors: Iterable[Mapping[str, Any]]) -> str:
    """What a value must be, by those of the `errors()` of a ValidationError that are of it: one, or one for each kind that it may be of."""
    return " or ".join(dict.fromkeys(map(_requirement, errors)))


def _requirement(details: Mapping[str, Any]) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in KINDS:
        return KINDS[kind]
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        number = context[bound]
        return f"{words} {int(number) if number == int(number) else number:,}"
    match kind:
        case "literal_error":
            return str(context["expected"]).replace("'", "")
        case "too_short":
            return f"{HOLDERS[context['field_type']]} {context['min_length']}"
        case "string_too_short":
            return f"text of at least {context['min_length']} character{'s' if context['min_length'] > 1 else ''}"
        case "string_pattern_mismatch":
            return f"text of the form {context['pattern']}"
    return f"otherwise ({details['msg']})"
