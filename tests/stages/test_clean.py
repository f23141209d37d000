import copy
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

from nmt.cleaning import RULES, Cleaner, CleaningConfig
from nmt.config import parse
from nmt.errors import UserError
from nmt.languages import Languages
from nmt.pairs import Pair
from nmt.raw import Manifest, write_manifest, write_raw
from stages import clean as stage
from stages.clean import main

ROOT = Path(__file__).parents[2]
PARAMS = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text("utf-8"))
PATHS = [Path(name) for name in ("raw", "manifest.json", "clean", "ledger.parquet", "cleaning.json")]
LIMITS = {"max_words": 5, "max_characters": 30, "max_ratio": 2.0, "drop_identical": True, "drop_held_out": True}
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
    ("a", 2, 2, "blank"),
    ("a", 3, 3, "too_long"),
    ("b", 1, 4, "duplicate"),
    ("b", 3, 6, "identical"),
    ("b", 4, 7, "ratio"),
    ("b", 5, 8, "held_out"),
    ("b", 6, 9, "held_out"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(pairs: list[Pair], workers: int = 1, **changes: Any) -> None:
    params = copy.deepcopy(PARAMS)
    mine = params["corpora"]["demo"]
    mine["cleaning"] |= LIMITS | changes
    hardware = PARAMS["hardware"] | {"workers": workers}
    YAML(typ="safe", pure=True).dump({"corpora": {"mine": mine}, "hardware": hardware}, Path("params.yaml"))
    Path("raw").mkdir(exist_ok=True)
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
        "dropped": {rule: sum(row[3] == rule for row in ROWS) for rule in RULES},
        "changed": {"join_whitespace": 2},
        "leaked": 0,
        "parts": [
            {"name": "a", "read": 3, "kept": 1, "dropped": {"blank": 1, "too_long": 1}},
            {"name": "b", "read": 7, "kept": 2, "dropped": {"ratio": 1, "identical": 1, "held_out": 2, "duplicate": 1}},
        ],
    }
    assert list(Path(".scratch/clean").iterdir()) == []


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
    assert sorted(path.name for path in Path().iterdir()) == [".scratch", "manifest.json", "params.yaml", "raw"]
    assert list(Path(".scratch/clean").iterdir()) == []


def test_an_unknown_rule_is_named() -> None:
    prepare(PAIRS, drop_identicle=True)
    with pytest.raises(UserError, match="corpora.mine.cleaning.drop_identicle is unknown: did you mean drop_identical?"):
        main("corpora.mine", *PATHS)


def many(count: int) -> list[Pair]:
    """Pairs of which each rule drops some, many of them twice, in parts of all sizes, with what others take for the end of a line."""
    rng = random.Random(count)
    words = ["a", "b", "c\u2028d", "e\x85f", "g\vh", "i\fj", "k\rl", "\u00a0", "m" * 40, "held"]
    parts = sorted(rng.choices("pqrstuvw", k=count))
    train = [Pair("train", part, " ".join(rng.choices(words, k=rng.randint(0, 3))), rng.choice(words)) for part in parts]
    return [*train, Pair("valid", "v", "held", "x"), Pair("test", "t", "a b", "y")]


def cleaned_plainly(pairs: list[Pair], sources: bool) -> tuple[list[tuple[str, str]], list[tuple[str, int, int, str]]]:
    """What should be kept and dropped, pair by pair, with sets that hold everything."""
    config = parse(CleaningConfig, PARAMS["corpora"]["demo"]["cleaning"] | LIMITS, "c")
    cleaner = Cleaner(config, [pair.src for pair in pairs if pair.set != "train"], Languages(src="en", tgt="de"))
    kept: list[tuple[str, str]] = []
    rows, seen, seen_sources, counts = [], set(), set(), Counter[str]()
    for number, pair in enumerate(pair for pair in pairs if pair.set == "train"):
        counts[pair.part] += 1
        both = cleaner.prepare(pair.src), cleaner.prepare(pair.tgt)
        rule = cleaner.rule(*both)
        if rule is None:
            rule = "duplicate" if both in seen else "duplicate_source" if sources and both[0] in seen_sources else None
            seen.add(both)
            seen_sources.add(both[0])
        if rule is None:
            kept.append(both)
        else:
            rows.append((pair.part, counts[pair.part], number + 1, rule))
    return kept, rows


@pytest.mark.parametrize("sources", [False, True])
def test_any_size_of_chunk_gives_what_one_pass_over_the_pairs_gives(sources: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = many(300)
    kept, rows = cleaned_plainly(pairs, sources)
    assert {row[3] for row in rows} >= {"blank", "too_long", "ratio", "identical", "held_out", "duplicate"}
    assert ("duplicate_source" in {row[3] for row in rows}) == sources
    prepare(pairs, drop_duplicate_sources=sources)
    found = []
    for chunk in (13, 299, 20_000):
        monkeypatch.setattr(stage, "CHUNK", chunk)
        main("corpora.mine", *PATHS)
        found.append(outputs())
    assert found[1:] == found[:-1]
    for side, language in enumerate(("en", "de")):
        assert Path(f"clean/train.{language}").read_bytes() == "".join(f"{pair[side]}\n" for pair in kept).encode()
    assert list(pd.read_parquet("ledger.parquet").itertuples(index=False, name=None)) == rows


@pytest.mark.slow
def test_1_2_and_7_workers_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "CHUNK", 40)
    found = []
    for workers in (1, 2, 7):
        prepare(many(300), workers)
        main("corpora.mine", *PATHS)
        found.append(outputs())
    assert found[0] == found[1] == found[2] and len(found[0]) == 4


def test_pairs_that_leak_are_counted_where_they_are_kept() -> None:
    prepare(PAIRS, drop_held_out=False)
    main("corpora.mine", *PATHS)
    facts = json.loads(Path("cleaning.json").read_text())
    assert facts["leaked"] == 2 and facts["kept"] == 5 and facts["dropped"]["held_out"] == 0


def test_a_text_that_is_not_as_long_as_its_manifest_says_is_refused() -> None:
    prepare(PAIRS)
    for language in ("en", "de"):
        with Path(f"raw/train.{language}").open("ab") as stream:
            stream.write(b"more\n")
    with pytest.raises(UserError, match="train.en has 11 lines, but the manifest says 10: run the stage `fetch` again"):
        main("corpora.mine", *PATHS)


@pytest.mark.slow
@pytest.mark.essential
def test_killed_at_any_chunk_the_next_run_keeps_what_was_finished_and_ends_with_the_same_bytes() -> None:
    prepare(many(300), workers=2)
    program = f"from pathlib import Path, PosixPath; from stages import clean; clean.CHUNK = 20; clean.main('corpora.mine', *{PATHS})"
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment)
    whole = outputs()
    for path in PATHS[2:]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before: dict[Path, int] = {}
    for wanted in (1, 8):
        with subprocess.Popen(command, env=environment) as process:
            while len(chunks := {path: path.stat().st_ino for path in Path(".scratch/clean").glob("*/[0-9]*[0-9]")}) < wanted:
                assert process.poll() is None, "it ended before it was killed"
            process.kill()
        assert not any(path.exists() for path in PATHS[2:])
        assert before.items() <= chunks.items(), "a finished chunk was made again"
        before = chunks
    subprocess.run(command, check=True, env=environment)
    assert outputs() == whole and list(Path(".scratch/clean").iterdir()) == []
