"""The console script `nmt`: what people do with a finished model, beside the pipeline."""

import os
import signal
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from nmt import hardware
from nmt.errors import UserError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

BATCH_LINES = 1000  # read before the first translation is written


@app.callback()
def _nmt() -> None:
    """Translate with a model that the pipeline trained, and score translations."""


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged")],
    beam: Annotated[int, typer.Option(help="Beam size", min=1)] = 4,
    length_penalty: Annotated[float, typer.Option(help="Alpha of Wu et al. 2016", min=0)] = 0.6,
) -> None:
    """Translate standard input to standard output, line by line."""
    machine = hardware.HardwareConfig()
    device = hardware.prepare(machine)
    from nmt.bundle import load_bundle
    from nmt.lines import stream_lines
    from nmt.search import DecodeConfig
    from nmt.translation import Translator, best

    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision="float32")
    translator = Translator(load_bundle(model), config, device, machine.decode_tokens)
    name, first = "standard input", 1
    if sys.stdin is None:
        raise UserError("there is no standard input: give it the text, nmt translate MODEL < text")
    lines = stream_lines(sys.stdin.buffer, name)
    while batch := list(islice(lines, BATCH_LINES)):
        _write(map(best, translator.translate(batch, name=name, first=first)))
        first += len(batch)


@app.command()
def score(
    hypotheses: Annotated[Path, typer.Argument(help="Translations, a line each; plain text or .gz, .xz, .bz2, .zst")],
    references: Annotated[Path, typer.Argument(help="What they are held against, line by line")],
    language: Annotated[str, typer.Option(help="Code of their language, for the Moses tokens")],
    source: Annotated[Path | None, typer.Option(help="The lines that were translated")] = None,
) -> None:
    """Score translations by every usual metric, after a look at whether they can be scored."""
    from nmt import shifted
    from nmt.evaluation import Texts, evaluate
    from nmt.lines import read_lines
    from nmt.remains import remains
    from nmt.score_table import show

    sides = {path: list(read_lines(path)) for path in (hypotheses, references, *([source] if source else []))}
    counts = {path: len(lines) for path, lines in sides.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        told = ", ".join(f"{path} has {count:,} lines" for path, count in counts.items())
        raise UserError(f"{told}: all must have equally many, and at least one")
    system, reference = sides[hypotheses], sides[references]
    sources = sides[source] if source else [""] * len(reference)
    for warning in [*remains(system, reference), *shifted.judge(sources, reference, system)]:
        print(f"warning: {warning}", file=sys.stderr)
    show(evaluate({hypotheses.name: Texts(sources, reference, system, [False] * len(reference))}, language)[0])


def _write(lines: Iterable[str]) -> None:
    """Write the lines to standard output in UTF-8, whatever the terminal's encoding. Raises UserError when they cannot be written."""
    try:
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries once more when it ends
        raise UserError(f"the translations could not be written: {error.strerror}") from None


def main() -> None:
    """Entry point: a UserError is printed as one sentence and exits with code 2."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other filters do: `nmt translate … | head` ends in silence
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
