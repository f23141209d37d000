"""Which of the project's files a module runs on, and whether an edit to them can change what it does.

A stage reruns when one of its files is edited, so dvc.yaml lists exactly those files. What an edited comment must not
cost is days of training: `digest` reads the files as syntax trees, and the training stage keeps its work while it stays.

    stages/train.py:   from nmt import model        # and nmt/model.py imports nmt.config
    imported_files("stages.train", root)  ->  [root/nmt/config.py, root/nmt/model.py, root/stages/train.py]
"""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def imported_files(module: str, root: Path) -> list[Path]:
    """The files below `root` that `module`, a dotted name, runs on: its own and, through all imports, the project's.

    The project's are the modules of the packages directly below `root`. Imports are read from the text, those inside
    functions too; a name made at run time (`importlib`) or started as a process is not seen. `__init__.py` is left out,
    for it is empty here. Sorted by path. Raises ImportError for a module that is not there and for a relative import.
    """
    own = _file(module, root)
    if own is None:
        raise ImportError(f"{module} is not a module of a package in {root}")
    found: set[Path] = set()
    pending: list[Path | None] = [own]
    while pending:
        file = pending.pop()
        if file is not None and file not in found:
            found.add(file)
            pending.extend(_file(name, root) for name in imports(file))
    return sorted(found, key=Path.as_posix)


def imports(file: Path) -> list[str]:
    """The dotted names that `file` imports, wherever they stand in it; `from a import b` is "a.b". Sorted, each once.

    Raises ImportError for a relative import, which the project has none of.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ImportError(f"{file}, line {node.lineno}: a relative import; write the module's full name")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted(names)


def digest(files: Iterable[Path], root: Path) -> str:
    """SHA-256, in hexadecimal, over what `files` do: their paths below `root` and their syntax without comments and docstrings.

    Neither comments, docstrings and layout nor the order of `files` nor the place of `root` change it; every other edit
    does, and so may another version of Python, whose syntax trees differ.
    """
    trees = sorted((file.relative_to(root).as_posix(), _syntax(file)) for file in files)
    return hashlib.sha256(repr(trees).encode()).hexdigest()


def _file(name: str, root: Path) -> Path | None:
    """The file that `name` (a module, or something in one) stands in; None if it is not the project's or is a package."""
    parts = name.split(".")
    if not (root / parts[0] / "__init__.py").is_file():
        return None
    for length in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file() and length == len(parts):
            return None
    raise ImportError(f"{name}: there is no such module below {root}")


def _syntax(file: Path) -> str:
    tree = ast.parse(file.read_bytes(), str(file))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
