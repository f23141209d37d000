from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.config import parse
from nmt.errors import UserError
from nmt.sources import Origin, check_corpus, held_out_test

PARAMS = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "params.yaml").read_text("utf-8"))
LANGUAGES = {"src": "en", "tgt": "de"}
SHARES = {"valid": 0.1, "test": 0.1, "min_test_lines": 1}
WHEEL = PARAMS["corpora"]["demo"]["source"]


def files(*sets: str) -> dict[str, Any]:
    return {"kind": "files", "sets": {name: [{"src": f"{name}.en", "tgt": f"{name}.de"}] for name in sets}}


def origin(source: dict[str, Any], held_out: dict[str, Any] | None, *test: str) -> Origin:
    parsed = parse(Origin, {"languages": LANGUAGES, "source": source, "held_out": held_out, "test": list(test)}, "corpora.c")
    check_corpus("corpora.c", parsed.source, parsed.held_out, parsed.test)
    return parsed


@pytest.mark.parametrize("name", PARAMS["corpora"])
def test_every_corpus_of_the_project_is_sound(name: str) -> None:
    corpus = PARAMS["corpora"][name]
    parsed = parse(Origin, {field: corpus[field] for field in Origin.model_fields}, f"corpora.{name}")
    check_corpus(f"corpora.{name}", parsed.source, parsed.held_out, parsed.test)


@pytest.mark.parametrize(
    ("source", "held_out", "test"),
    [
        (WHEEL, SHARES, ["test"]),
        (files("train"), SHARES, ["test"]),
        (files("train", "valid"), SHARES | {"valid": 0.0}, ["mine"]),
        (files("train", "news"), SHARES | {"test": 0.0}, ["news"]),
        (files("train", "valid", "news"), SHARES | {"valid": 0}, ["news", "mine"]),
        (files("train", "valid", "news", "talks"), None, ["news", "talks"]),
    ],
)
def test_sets_are_named_or_held_out(source: dict[str, Any], held_out: dict[str, Any] | None, test: list[str]) -> None:
    expected = next((name for name in test if name not in source.get("sets", {})), test[0])
    assert held_out_test(origin(source, held_out, *test)) == expected


@pytest.mark.parametrize(
    ("source", "held_out", "test", "words"),
    [
        (WHEEL, None, ["test"], "corpora.c.held_out is null, but the source names no text for valid and test"),
        (WHEEL, SHARES, ["a", "b"], "corpora.c.source names no text for the tests a, b: only one can be held out"),
        (
            WHEEL,
            SHARES | {"test": 0.0},
            ["test"],
            "corpora.c.held_out.test is 0.0, but the source does not name that set: make it a share above 0",
        ),
        (files("train"), None, ["news"], "corpora.c.held_out is null, but the source names no text for valid and news"),
        (files("train", "valid"), SHARES, ["news"], "corpora.c.held_out.valid is 0.1, but the source names that set: make it 0"),
        (files("train", "news"), SHARES, ["news"], "corpora.c.held_out.test is 0.1, but the source names that set: make it 0"),
        (files("train", "valid", "news"), SHARES, ["news"], "corpora.c.held_out must be null"),
        (files("train", "valid", "nwes"), SHARES, ["news"], "corpora.c.source.sets.nwes is neither .* did you mean news?"),
        (files("valid", "news"), None, ["news"], "corpora.c.source.sets.train is missing"),
        (files("train"), SHARES, ["valid"], "corpora.c.test names a set twice, or is called train or valid"),
        (files("train"), SHARES, ["a", "a"], "corpora.c.test names a set twice"),
        (files("train"), SHARES, ["../a"], "corpora.c.test.0"),
        (files("train"), SHARES, [], "corpora.c.test"),
        ({"kind": "wheels"}, SHARES, ["test"], "corpora.c.source"),
        (WHEEL | {"sha256": "7CA5"}, SHARES, ["test"], "sha256"),
        (WHEEL | {"pakage": "x"}, SHARES, ["test"], "corpora.c.source.pakage is unknown: did you mean package?"),
    ],
)
def test_sections_that_disagree_are_named(source: dict[str, Any], held_out: dict[str, Any] | None, test: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        origin(source, held_out, *test)
