import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

from nmt.cleaning import RULES
from nmt.errors import UserError
from nmt.pairs import Pair
from nmt.raw import Manifest, write_manifest, write_raw
from stages.clean import main

PARAMS = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "params.yaml").read_text("utf-8"))
PATHS = [Path(name) for name in ("raw", "manifest.json", "clean", "ledger.parquet", "cleaning.json")]
LIMITS = {"max_words": 5, "max_characters": 30, "max_ratio": 2.0, "drop_identical": True, "drop_duplicates": True, "drop_held_out": True}
PAIRS = [
    Pair("train", "a", "one  two", "eins zwei"),  # kept, changed
    Pair("train", "a", "", "leer"),
    Pair("train", "a", "x" * 65_536, "lang"),
    Pair("train", "b", "one two ", "eins\u00a0zwei"),  # equal to the first once joined
    Pair("train", "b", "one\u2028three", "eins drei"),  # kept, changed
    Pair("train", "b", "name", "name"),
    Pair("train", "b", "a b c d", "a"),
    Pair("train", "b", "held  out", "vorenthalten"),
    Pair("train", "b", "tested", "geprüft"),
    Pair("train", "b", "three", "drei"),  # kept
    Pair("valid", "v", "held out", "vorenthalten"),
    Pair("valid", "v", "", ""),
    Pair("test", "t", "tested\u00a0", "geprüft"),
]
ROWS = [
    ("a", 2, "blank"),
    ("a", 3, "too_long"),
    ("b", 1, "duplicate"),
    ("b", 3, "identical"),
    ("b", 4, "ratio"),
    ("b", 5, "held_out"),
    ("b", 6, "held_out"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(pairs: list[Pair], **changes: Any) -> None:
    params = copy.deepcopy(PARAMS)
    mine = params["corpora"]["demo"]
    mine["cleaning"] |= LIMITS | changes
    YAML(typ="safe", pure=True).dump({"corpora": {"mine": mine}}, Path("params.yaml"))
    Path("raw").mkdir()
    sets = write_raw(pairs, Path("raw"), ("en", "de"), ["train", "valid", "test"])
    write_manifest(Path("manifest.json"), Manifest(languages={"src": "en", "tgt": "de"}, source={}, sets=sets, counted={}))


def outputs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for top in PATHS[2:] for path in (top, *top.rglob("*")) if path.is_file()}


def test_every_pair_is_in_the_clean_text_or_in_the_ledger_under_its_rule() -> None:
    prepare(PAIRS)
    main("corpora.mine", *PATHS)
    assert sorted(path.name for path in Path("clean").iterdir()) == ["train.de", "train.en"]
    assert Path("clean/train.en").read_bytes() == b"one two\none three\nthree\n"
    assert Path("clean/train.de").read_bytes() == b"eins zwei\neins drei\ndrei\n"
    assert list(pd.read_parquet("ledger.parquet").itertuples(index=False, name=None)) == ROWS
    assert json.loads(Path("cleaning.json").read_text()) == {
        "read": 10,
        "kept": 3,
        "dropped": {rule: sum(row[2] == rule for row in ROWS) for rule in RULES},
        "changed": {"join_whitespace": 2},
        "parts": [{"name": "a", "read": 3, "kept": 1}, {"name": "b", "read": 7, "kept": 2}],
    }


def test_a_second_run_gives_the_same_bytes() -> None:
    prepare(PAIRS)
    main("corpora.mine", *PATHS)
    first = outputs()
    main("corpora.mine", *PATHS)
    assert outputs() == first and len(first) == 4


def test_without_joining_the_lines_stay_to_the_byte() -> None:
    prepare(PAIRS, join_whitespace=False)
    main("corpora.mine", *PATHS)
    assert Path("clean/train.en").read_text("utf-8").split("\n")[:3] == ["one  two", "one two ", "one\u2028three"]
    assert json.loads(Path("cleaning.json").read_text())["changed"] == {"join_whitespace": 0}


def test_if_nothing_is_left_the_rules_are_named_and_no_output_stays() -> None:
    prepare([Pair("train", "a", "x" * 65_536, "y")] * 3 + [Pair("train", "a", "", "")], max_words=1)
    with pytest.raises(UserError, match=r"no training pair of 4 is left \(1 blank, 3 too_long\): loosen corpora.mine.cleaning"):
        main("corpora.mine", *PATHS)
    assert sorted(path.name for path in Path().iterdir()) == ["manifest.json", "params.yaml", "raw"]


def test_an_unknown_rule_is_named() -> None:
    prepare(PAIRS, drop_identicle=True)
    with pytest.raises(UserError, match="corpora.mine.cleaning.drop_identicle is unknown: did you mean drop_identical?"):
        main("corpora.mine", *PATHS)
