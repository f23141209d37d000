"""README.md: what it has people type works where it stands, and its figures are those of params.yaml."""

import re
from pathlib import Path

from nmt.score_table import ROWS

PROJECT = Path(__file__).resolve().parent.parent
TEXT = (PROJECT / "README.md").read_text("utf-8")
BARE = re.compile(r"(?<![/\w.])(python|nmt|dvc|torchrun|prefect) (?=[-a-z])")


def test_bare_commands_of_the_environment_stand_below_the_sentence_that_activates_it() -> None:
    activated = TEXT.index("`source .venv/bin/activate`")
    typed = [(block.start(), line) for block in re.finditer(r"```[a-z]*\n(.*?)```", TEXT, re.S) for line in block[1].splitlines()]
    bare = [(place, line) for place, line in typed if BARE.search(line)]
    assert len(bare) > 15
    assert [line for place, line in bare if place < activated] == []


def test_every_command_named_is_there() -> None:
    modules = set(re.findall(r"python -m ((?:stages|pipelines)\.\w+)", TEXT))
    scripts = set(re.findall(r"python (benchmarks/\w+\.py)", TEXT))
    assert len(modules) > 6 and len(scripts) > 3
    assert all((PROJECT / f"{name.replace('.', '/')}.py").is_file() for name in modules)
    assert all((PROJECT / name).is_file() for name in scripts)


def test_the_counts_of_debian_are_those_that_params_yaml_tells() -> None:
    params = (PROJECT / "params.yaml").read_text("utf-8")
    rows = re.findall(r"^\| `(debian[-a-z]*)` \| ([\d,]+) \| ([\d,]+) \|", TEXT, re.M)
    assert [name for name, *_ in rows] == ["debian", "debian-en-fr"]
    for name, pairs, kept in rows:
        comment = re.search(rf"  # (.*)\n  {name}:", params)
        assert comment and f"{pairs} pairs, of which {kept} stay for training." in comment[1]


def test_scores_have_one_name_everywhere() -> None:
    quoted = set(re.findall(r"`(bleu\w*)`", TEXT))
    assert {name for name in ROWS if name.startswith("bleu")} == quoted
    found = re.search(r"set metrics = \[(.*?)\]", (PROJECT / "stages" / "report.html.j2").read_text("utf-8"))
    assert found and tuple(re.findall(r'"(.*?)"', found[1])) == ROWS
