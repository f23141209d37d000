"""nmt.code: which files a module runs on, and which edits count."""

from pathlib import Path

import pytest

from nmt.code import digest, imported_files, imports

MODULE = '''\
"""What this module is."""

import os
import sys

LIMIT = 3


class Box:
    """A box."""

    size = "small"

    def open(self):
        """Open it."""
        "a string that is no docstring"
        return os.sep + sys.byteorder  # why

    async def shut(self):
        """Shut it."""
'''


def project(root: Path, **files: str) -> Path:
    """A project below `root`: `a__b=text` is the module a.b, and every folder is a package."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        (path.parent / "__init__.py").touch()
    return root


def names(module: str, root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in imported_files(module, root)]


def test_own_file_and_every_kind_of_import_are_followed(tmp_path: Path) -> None:
    root = project(
        tmp_path,
        stages__main="import nmt.a, os\nfrom nmt import b as other, c\nfrom nmt.d import thing\nimport nmt.deep.e as e\n",
        nmt__a="",
        nmt__b="",
        nmt__c="",
        nmt__d="thing = 1",
        nmt__deep__e="",
        nmt__unused="",
    )
    assert names("stages.main", root) == ["nmt/a.py", "nmt/b.py", "nmt/c.py", "nmt/d.py", "nmt/deep/e.py", "stages/main.py"]


def test_imports_are_followed_through_other_modules_and_round_in_circles(tmp_path: Path) -> None:
    root = project(tmp_path, stages__main="import nmt.a", nmt__a="import nmt.b", nmt__b="import nmt.c", nmt__c="import nmt.a")
    assert names("stages.main", root) == ["nmt/a.py", "nmt/b.py", "nmt/c.py", "stages/main.py"]


def test_imports_inside_functions_and_branches_count(tmp_path: Path) -> None:
    root = project(
        tmp_path,
        stages__main="def f():\n    from nmt import a\nif f:\n    try:\n        import nmt.b\n    except ImportError:\n        pass\n",
        nmt__a="",
        nmt__b="",
    )
    assert names("stages.main", root) == ["nmt/a.py", "nmt/b.py", "stages/main.py"]


def test_other_packages_and_a_bare_package_add_nothing(tmp_path: Path) -> None:
    root = project(tmp_path, stages__main="import nmt, torch, numpy.linalg\nfrom pathlib import Path\n", nmt__a="")
    assert names("stages.main", root) == ["stages/main.py"]


def test_a_relative_import_is_refused_with_its_place(tmp_path: Path) -> None:
    root = project(tmp_path, stages__main="import os\nfrom . import other\n", stages__other="")
    with pytest.raises(ImportError, match=r"main\.py, line 2: a relative import"):
        imported_files("stages.main", root)


def test_a_module_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    root = project(tmp_path, stages__main="from nmt import mising", nmt__missing="")
    with pytest.raises(ImportError, match=r"nmt\.mising: there is no such module"):
        imported_files("stages.main", root)
    for module in ("stages.mian", "stagse.main", "stages"):
        with pytest.raises(ImportError, match=module):
            imported_files(module, root)


def test_imports_name_what_is_imported(tmp_path: Path) -> None:
    project(tmp_path, a__b="import os.path, sys as s\nfrom x.y import z, w\nimport sys\n")
    assert imports(tmp_path / "a" / "b.py") == ["os.path", "sys", "x.y.w", "x.y.z"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""What this module is."""', '"""Something else, \'quoted\'."""'),
        ('"""What this module is."""\n\n', ""),
        ('"""A box."""', '"""A case."""'),
        ('"""Open it."""', '"""\n        Open it,\n        slowly.\n        """'),
        ('"""Shut it."""', '"""Close it."""'),
        ("# why", "# another reason"),
        ("  # why", ""),
        ("LIMIT = 3\n", "\n\n# three\nLIMIT   =   (3)\n"),
        ('"small"', "'small'"),
    ],
)
def test_comments_docstrings_and_layout_keep_the_digest(old: str, new: str, tmp_path: Path) -> None:
    assert edited(old, new, tmp_path / "edited") == edited("", "", tmp_path / "as_is")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("LIMIT = 3", "LIMIT = True"),
        ("LIMIT", "BOUND"),
        ('"small"', '"large"'),
        ("a string that is no docstring", "another string"),
        ("import os\nimport sys", "import sys\nimport os"),
        ("async def", "def"),
        ("os.sep + sys.byteorder", "sys.byteorder + os.sep"),
        ("class Box:", "class Box(object):"),
    ],
)
def test_every_other_edit_changes_the_digest(old: str, new: str, tmp_path: Path) -> None:
    assert edited(old, new, tmp_path / "edited") != edited("", "", tmp_path / "as_is")


def edited(old: str, new: str, root: Path) -> str:
    """The digest of MODULE with `old` replaced by `new`."""
    assert old in MODULE
    project(root, a__b=MODULE.replace(old, new) if old else MODULE)
    return digest(imported_files("a.b", root), root)


def test_the_digest_counts_each_file_and_its_path_but_not_order_or_place(tmp_path: Path) -> None:
    def of(root: Path, *files: str) -> str:
        return digest([root / file for file in files], root)

    here = project(tmp_path / "here", a__b="x = 1", a__c="y = 2", d__b="x = 1")
    there = project(tmp_path / "there", a__b="x = 1", a__c="y = 2")
    assert of(here, "a/b.py", "a/c.py") == of(here, "a/c.py", "a/b.py") == of(there, "a/b.py", "a/c.py")
    assert len({of(here, "a/b.py"), of(here, "d/b.py"), of(here, "a/b.py", "a/c.py"), of(here, "a/c.py")}) == 4
