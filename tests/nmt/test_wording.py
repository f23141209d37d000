"""nmt.wording: every kind of wrong value has words of its own."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from nmt.wording import requirement
from stages.check import Params

OF_SECTIONS = ("model_type", "union_tag_not_found", "value_error", "missing")  # of which nmt.config speaks


def wrong(kind: Any, value: Any) -> str:
    """What is said of `value` where a `kind` must stand."""
    model = create_model("Asked", __config__=ConfigDict(strict=True), value=(kind, ...))
    with pytest.raises(ValidationError) as raised:
        model(value=value)
    return requirement(raised.value.errors())


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, "3", "a whole number"),
        (int, 3.5, "a whole number"),
        (float, "3", "a number"),
        (bool, 1, "true or false"),
        (str, 1, "text"),
        (list[int], 1, "a list"),
        (dict[str, int], 1, "a section with names below it"),
        (Annotated[int, Field(ge=1)], 0, "at least 1"),
        (Annotated[float, Field(gt=0)], 0, "above 0"),
        (Annotated[float, Field(le=1_000_000)], 2e6, "at most 1,000,000"),
        (Annotated[float, Field(lt=0.5)], 0.5, "below 0.5"),
        (Annotated[int, Field(multiple_of=2)], 3, "a multiple of 2"),
        (Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)], math.nan, "a finite number"),
        (Literal["a", "b", "c"], "x", "a, b or c"),
        (Annotated[list[int], Field(min_length=1)], [], "a list of at least 1"),
        (Annotated[dict[str, int], Field(min_length=1)], {}, "a section of at least 1"),
        (Annotated[str, Field(min_length=1)], "", "text of at least 1 character"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "text of the form ^[a-z]+$"),
        (Literal["auto"] | Annotated[int, Field(ge=1)], 0, "auto or at least 1"),
        (Literal["auto"] | int, "x", "auto or a whole number"),
        (str | list[str], 3, "text or a list"),
    ],
)
def test_what_a_value_must_be_is_said_in_plain_words(kind: Any, value: Any, expected: str) -> None:
    assert wrong(kind, value) == expected


def fields(kind: Any) -> Iterator[Any]:
    """The types of all fields of a section and of those below it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for field in kind.model_fields.values():
            whole = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            yield whole
            yield from fields(field.annotation)
    for part in get_args(kind) if get_origin(kind) is not Literal else ():
        yield from fields(part)


def test_every_parameter_of_the_project_has_words_for_whatever_is_wrong_with_it() -> None:
    found = list(fields(Params))
    assert len(found) > 60
    said = set()
    for kind in found:
        for value in (0, -1, 1.5, math.nan, math.inf, 1 << 70, "", "\0", "x", [], {}, None, [""], [0], True):
            model = create_model("Asked", __config__=ConfigDict(strict=True), value=(kind, ...))
            try:
                model(value=value)
            except ValidationError as error:
                said.add(requirement(one for one in error.errors() if one["type"] not in OF_SECTIONS))
    assert {"at least 1", "a whole number", "auto or at least 1", "a section of at least 1"} <= said
    assert not any("otherwise" in one for one in said)
