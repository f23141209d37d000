"""A long text translated in pieces: several processes share them, and what was finished before a stop is not done again.

    scratch/6f1c…/          named by all that decides the translations
        lock                the process that holds it
        test.0000000        what came of lines 1 to PIECE_LINES, whole or not there
        test.0000001        …

A translation depends on its line alone, so neither the number of processes nor where the work was stopped shows in the result.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.bundle import Bundle
from nmt.checkpoint import file_sha256
from nmt.code import digest, imported_files
from nmt.lines import read_exact, write_lines
from nmt.outputs import whole_file
from nmt.progress import Progress
from nmt.ranks import Ranks
from nmt.scratch import fingerprint, held
from nmt.search import DecodeConfig

ROOT = Path(__file__).parent.parent
PIECE_LINES = 2048


@contextmanager
def unfinished(
    scratch: Path, bundles: Sequence[Bundle], config: DecodeConfig, sources: Sequence[Path], ranks: Ranks, **more: Any
) -> Iterator[Path]:
    """The folder below `scratch` for the pieces of these sources with these models and settings, held for all processes by the first.

    `more` is what else decides the pieces. Raises UserError when another command is at work there, or a process sees other files.
    """
    facts = {
        "models": [[bundle.config.get("weights_sha256"), bundle.tokenizer.sha256] for bundle in bundles],
        "decode": config.model_dump(),
        "sources": [file_sha256(source) for source in sources],
        "code": digest(imported_files("nmt.translation", ROOT), ROOT),
        "lines": PIECE_LINES,
        **more,
    }
    name = fingerprint(facts)
    ranks.check_same(name)
    with held(scratch / name) if ranks.first else nullcontext():
        yield scratch / name


def finish(
    folder: Path,
    name: str,
    lines: Iterable[str],
    ranks: Ranks,
    work: Callable[[list[str], int], Iterable[str]],
    skip: Callable[[int, float], None],
) -> int:
    """Write the pieces of `lines` that are this process's and not there yet to `folder`, in files called after `name`.

    Returns how many pieces there are in all. `work` makes lines of output of a piece and the number of its first line; `skip` is told
    how many lines were there already, and their characters.
    """
    count, coming = 0, iter(lines)
    while piece := list(islice(coming, PIECE_LINES)):
        if count % ranks.size == ranks.rank:
            path = _path(folder, name, count)
            if path.exists():
                skip(len(piece), sum(map(len, piece)))
            else:
                with whole_file(path) as building:
                    write_lines(building, work(piece, 1 + count * PIECE_LINES))
        count += 1
    return count


def finished(folder: Path, name: str, count: int) -> Iterator[str]:
    """The lines of all pieces called after `name`, in order."""
    for number in range(count):
        yield from read_exact(_path(folder, name, number))


def progress_of(label: str, lines: Iterable[str], ranks: Ranks) -> Progress:
    """Of those of the lines that are this process's, by their characters; shown by the first process."""
    count, work = 0, 0.0
    for number, line in enumerate(lines):
        if number // PIECE_LINES % ranks.size == ranks.rank:
            count, work = count + 1, work + len(line)
    return Progress(label, count, "lines", visible=ranks.first, work=work)


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}.{number:07}"
