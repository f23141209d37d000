"""nmt.config: what is wrong in a section is named as the user knows it, in one sentence."""

from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from nmt.config import Config, nearest, parse
from nmt.errors import UserError


class Disk(Config):
    kind: Literal["disk"]
    path: str


class Web(Config):
    kind: Literal["web"]
    url: str
    retries: int = Field(ge=1)


class Range(Config):
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Whole(Config):
    count: int = Field(ge=1)
    rate: float
    name: str
    mode: Literal["fast", "slow"]
    threads: Literal["auto"] | Annotated[int, Field(ge=1)]
    source: Annotated[Disk | Web, Field(discriminator="kind")]
    range: Range | None
    parts: dict[str, list[Range]]


GOOD: dict[str, Any] = {
    "count": 3,
    "rate": 0.5,
    "name": "x",
    "mode": "fast",
    "threads": "auto",
    "source": {"kind": "web", "url": "u", "retries": 2},
    "range": {"low": 0, "high": 1.5},
    "parts": {"a": [{"low": 1, "high": 2}], "b": []},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with another value at `path`; `...` takes the name away."""

    def rebuild(node: Any, parts: list[str]) -> Any:
        if not parts:
            return value
        if isinstance(node, list):
            return [rebuild(item, parts[1:]) if str(number) == parts[0] else item for number, item in enumerate(node)]
        found = {**node, parts[0]: rebuild(node.get(parts[0]), parts[1:])}
        return {name: item for name, item in found.items() if item is not ...}

    found: dict[str, Any] = rebuild(GOOD, path.split("."))
    return found


def message(values: Any, name: str = "top") -> str:
    with pytest.raises(UserError) as raised:
        parse(Whole, values, name)
    assert raised.value.__suppress_context__
    text = str(raised.value)
    assert "\n" not in text and "pydantic" not in text
    return text


def test_what_is_right_is_taken_as_it_is() -> None:
    parsed = parse(Whole, GOOD, "top")
    assert parsed.model_dump() == GOOD
    assert isinstance(parsed.source, Web)
    for path, value in (("range", None), ("threads", 2), ("source", {"kind": "disk", "path": "p"}), ("rate", 2)):
        assert parse(Whole, changed(path, value), "top").model_dump() == changed(path, value)


def test_a_section_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse(Whole, GOOD, "top").count = 4


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("count", ..., "top.count is missing"),
        ("source.url", ..., "top.source.url is missing"),
        ("source.kind", ..., "top.source.kind is missing"),
        ("range.high", ..., "top.range.high is missing"),
        ("parts.a.0.low", ..., "top.parts.a.0.low is missing"),
        ("coumt", 3, "top.coumt is unknown: did you mean count?"),
        ("source.ulr", "u", "top.source.ulr is unknown: did you mean url?"),
        ("source.path", "p", "top.source.path is unknown: known are kind, retries, url"),
        ("range.hihg", 3, "top.range.hihg is unknown: did you mean high?"),
        ("parts.a.0.lo", 3, "top.parts.a.0.lo is unknown: did you mean low?"),
        ("source.kind", "wep", "top.source.kind is 'wep': did you mean web?"),
        ("source.kind", "zzz", "top.source.kind is 'zzz': known are disk, web"),
        ("count", "3", "top.count is '3': it must be a whole number"),
        ("count", 3.0, "top.count is 3.0: it must be a whole number"),
        ("count", True, "top.count is True: it must be a whole number"),
        ("count", None, "top.count is None: it must be a whole number"),
        ("count", {"a": 1}, "top.count is a section: it must be a whole number"),
        ("count", 0, "top.count is 0: it must be at least 1"),
        ("source.retries", 0, "top.source.retries is 0: it must be at least 1"),
        ("rate", "0.5", "top.rate is '0.5': it must be a number"),
        ("rate", False, "top.rate is False: it must be a number"),
        ("name", 2, "top.name is 2: it must be text"),
        ("mode", "fats", "top.mode is 'fats': it must be fast or slow"),
        ("threads", 0, "top.threads is 0: it must be auto or at least 1"),
        ("range", 7, "top.range is 7: it must be a section, with low, high below it"),
        ("parts.a.0", 7, "top.parts.a.0 is 7: it must be a section, with low, high below it"),
        ("parts.a", 7, "top.parts.a is 7: it must be a list"),
        ("parts", None, "top.parts is None: it must be a section with names below it"),
        ("range.low", 2, "top.range cannot be so: low (2.0) is above high (1.5)"),
        ("parts.a.0.high", 0, "top.parts.a.0 cannot be so: low (1.0) is above high (0.0)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_by_its_dotted_name(path: str, value: Any, expected: str) -> None:
    assert message(changed(path, value)) == expected


@pytest.mark.parametrize("values", [None, 3, [], "text"])
def test_a_section_that_is_none_says_what_belongs_into_it(values: Any) -> None:
    expected = "it must be a section, with count, rate, name, mode, threads, source, range, parts below it"
    assert message(values) == f"top is {values!r}: {expected}"


def test_a_wrong_name_is_named_and_not_what_pydantic_calls_it() -> None:
    class Named(Config):
        entries: dict[Annotated[str, Field(pattern="^[a-z]+$")], Range]

    for name in ("A.b", 3):
        with pytest.raises(UserError, match=rf"^top\.entries\.{name} is {name!r}: "):
            parse(Named, {"entries": {name: {"low": 1, "high": 2}}}, "top")


def test_all_that_is_wrong_is_named_at_once() -> None:
    found = message({**changed("count", 0), "mode": "x", "more": 1})
    assert [part.split(" ")[0] for part in found.split("; ")] == ["top.count", "top.mode", "top.more"]


def test_the_whole_file_has_names_without_a_prefix() -> None:
    assert message(changed("source.url", ...), name="") == "source.url is missing"


def test_the_nearest_name_is_the_closest_or_all() -> None:
    assert nearest("dropuot", ["dropout", "d_model"]) == "did you mean dropout?"
    assert nearest("zz", ["b", "a"]) == "known are a, b"
