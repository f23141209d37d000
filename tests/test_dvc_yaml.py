"""dvc.yaml says all that a stage runs on, and nothing else: its code, its files, its parameters."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.code import imported_files

ROOT = Path(__file__).resolve().parent.parent


def read(name: str) -> Any:
    return YAML(typ="safe", pure=True).load((ROOT / name).read_text(encoding="utf-8"))


PARAMS = read("params.yaml")
STAGES: dict[str, Any] = read("dvc.yaml")["stages"]
NAMES = {"corpus": list(PARAMS["corpora"]), "variant": list(PARAMS["variants"])}


def deps(stage: str) -> list[str]:
    return list(STAGES[stage].get("deps", []))


def products(stage: str) -> dict[str, dict[str, Any]]:
    """The paths that a stage writes, with their options."""
    listed = [entry for kind in ("outs", "metrics", "plots") for entry in STAGES[stage].get(kind, [])]
    return {path: options for entry in listed for path, options in (entry.items() if isinstance(entry, dict) else [(entry, {})])}


def items(stage: str) -> Iterator[dict[str, str]]:
    """Every corpus and variant that the stage can be asked for, not only those of `reproduce`."""
    keys = list(STAGES[stage].get("matrix", {}))
    for values in itertools.product(*(NAMES[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def filled(text: str, item: dict[str, str]) -> str:
    return re.sub(r"\$\{item\.(\w+)\}", lambda match: item[match.group(1)], text)


def is_code(path: str) -> bool:
    """Whether a dep is a file of the project and not a product: a module, or the template of the report."""
    return path.startswith(("nmt/", "stages/"))


@pytest.mark.parametrize("stage", STAGES)
def test_code_deps_are_the_files_that_the_stage_imports(stage: str) -> None:
    needed = [path.relative_to(ROOT).as_posix() for path in imported_files(f"stages.{stage}", ROOT)]
    listed = [path for path in deps(stage) if path.endswith(".py")]
    add, remove = set(needed) - set(listed), set(listed) - set(needed)
    lines = [*(f"  add:     - {path}" for path in sorted(add)), *(f"  remove:  - {path}" for path in sorted(remove))]
    if lines:
        pytest.fail("\n".join([f"dvc.yaml, deps of {stage}:", *lines]), pytrace=False)
    assert listed == needed, f"dvc.yaml, deps of {stage}: a .py file stands there twice or not in alphabetic order"


@pytest.mark.parametrize("stage", STAGES)
def test_the_command_runs_the_stage_of_that_name_with_the_paths_it_declares(stage: str) -> None:
    words = STAGES[stage]["cmd"].split()
    assert words[:3] == ["python", "-m", f"stages.{stage}"]
    named = [word for word in words if "/" in word]
    declared = [path for path in deps(stage) if not is_code(path)] + list(products(stage))
    assert sorted(named) == sorted(declared)


@pytest.mark.parametrize("stage", STAGES)
def test_data_deps_are_products_of_other_stages(stage: str) -> None:
    made = {path for other in STAGES if other != stage for path in products(other)}
    assert {path for path in deps(stage) if not is_code(path)} <= made


@pytest.mark.parametrize("stage", STAGES)
def test_parameters_exist_for_every_corpus_and_variant(stage: str) -> None:
    for item in items(stage):
        for entry in STAGES[stage].get("params", []):
            found = PARAMS
            for part in filled(entry, item).split("."):
                assert part in found, f"{stage}: params.yaml has no {filled(entry, item)}"
                found = found[part]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_names_only_placeholders_of_its_matrix(stage: str) -> None:
    texts = [STAGES[stage]["cmd"], *deps(stage), *products(stage), *STAGES[stage].get("params", [])]
    used = {name for text in texts for name in re.findall(r"\$\{(.*?)\}", text)}
    assert used == {f"item.{key}" for key in STAGES[stage]["matrix"]}


@pytest.mark.parametrize("stage", STAGES)
def test_products_are_never_kept_from_an_earlier_run(stage: str) -> None:
    assert not [path for path, options in products(stage).items() if options.get("persist")]


def test_no_stage_depends_on_hardware_or_on_what_a_run_builds() -> None:
    entries = [entry.split(".")[0] for stage in STAGES.values() for entry in stage.get("params", [])]
    assert not {"hardware", "reproduce"} & set(entries)
