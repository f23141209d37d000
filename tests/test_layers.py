"""The arrows go down only: pipelines -> the dvc command -> stages -> nmt; and training, model and search stay apart."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from nmt.code import imported_files, imports

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("nmt", "stages", "pipelines")
ELSEWHERE = ROOT / "nmt" / "comet_worker.py"  # runs in an interpreter with other packages and without this project
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")


def modules(package: str) -> list[Path]:
    return [path for path in MODULES if path.relative_to(ROOT).parts[0] == package]


def wrong_imports(package: str, *forbidden: str) -> list[str]:
    """Imports in `package` of any of the `forbidden` packages or of modules in them, as "file imports name"."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if any(f"{name}.".startswith(f"{other}.") for other in forbidden)
    ]


def closure(module: str) -> set[str]:
    """The dotted names of the project's modules that `module` runs on."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in imported_files(module, ROOT)}


def test_nmt_knows_no_stage_no_flow_no_dvc_no_prefect() -> None:
    assert wrong_imports("nmt", "stages", "pipelines", "dvc", "prefect") == []


def test_stages_import_no_stage_but_the_shared_plumbing() -> None:
    shared = ("stages.params", "stages.names", "stages.command")
    others = [f"stages.{path.stem}" for path in modules("stages") if f"stages.{path.stem}" not in shared]
    assert wrong_imports("stages", *others, "pipelines", "dvc", "prefect") == []


def test_flows_load_without_stages_nmt_and_torch() -> None:
    assert wrong_imports("pipelines", "stages", "nmt", "torch") == []


@pytest.mark.parametrize(
    ("module", "apart_from"),
    [
        ("nmt.training", {"nmt.search", "nmt.scoring", "nmt.tokenizer"}),
        ("stages.train", {"nmt.search", "nmt.scoring", "nmt.tokenizer"}),
        ("nmt.model", {"nmt.shards", "nmt.batches", "nmt.tokenizer", "nmt.lines"}),
        ("nmt.search", {"nmt.model", "nmt.training"}),
    ],
)
def test_an_edit_of_one_part_does_not_reach_the_other(module: str, apart_from: set[str]) -> None:
    assert closure(module) & apart_from == set()


def test_imports_are_absolute_and_every_imported_module_exists() -> None:
    for path in MODULES:
        imported_files(".".join(path.relative_to(ROOT).with_suffix("").parts), ROOT)


def test_what_runs_elsewhere_needs_nothing_of_ours() -> None:
    assert imported_files("nmt.comet_worker", ROOT) == [ELSEWHERE]


def test_packages_are_marked_by_empty_init_files() -> None:
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").read_bytes() == b"", folder


def test_what_is_imported_from_elsewhere_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(line for name in ("export", "language", "serve", "cluster") for line in extras[name])]
    declared = {_distribution(line) for line in named}
    installed = packages_distributions()
    for path in MODULES:
        if path == ELSEWHERE:
            continue
        for name in {name.split(".")[0] for name in imports(path)} - set(PACKAGES) - sys.stdlib_module_names:
            distributions = {_distribution(found) for found in installed.get(name, [name])}
            assert distributions & declared, f"{path.relative_to(ROOT)} imports {name}, which pyproject.toml does not name"


def _distribution(requirement: str) -> str:
    """The normalized name in front of a requirement's versions, as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=\[ ]", requirement)[0]).lower()
