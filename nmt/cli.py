"""The console script `nmt`: what people do with a finished model, beside the pipeline."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt import hardware
from nmt.errors import UserError
from nmt.progress import Progress

if TYPE_CHECKING:
    from nmt.translation import Translation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _nmt() -> None:
    """Translate with a model that the pipeline trained."""


@app.command()
def translate(
    model: Annotated[
        list[Path], typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged; of several, the mean")
    ],
    beam: Annotated[int, typer.Option(help="Beam size", min=1)] = 4,
    length_penalty: Annotated[float, typer.Option(help="Alpha of Wu et al. 2016", min=0)] = 0.6,
    nbest: Annotated[int, typer.Option(help="Translations of each line; more than 1: number of the line, tab, translation", min=1)] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Put the score and a tab before each translation")] = False,
    prefix: Annotated[str, typer.Option(help="What every translation begins with")] = "",
    sample: Annotated[int | None, typer.Option(help="Draw translations instead of searching, with this seed", min=0)] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute")] = "auto",
    precision: Annotated[Literal["float32", "bfloat16", "int8"], typer.Option(help="Of the products")] = "float32",
) -> None:
    """Translate standard input to standard output, line by line, as the lines come."""
    if sample is None and nbest > beam:
        raise UserError(f"--nbest {nbest} is more than the beam holds: raise --beam ({beam}) to as many")
    if sys.stdin is None:
        raise UserError("there is no standard input: give it the text, nmt translate MODEL < text")
    machine = hardware.HardwareConfig(device=device)
    place = hardware.prepare(machine)
    from nmt.arriving import batches
    from nmt.bundle import load_bundle
    from nmt.search import DecodeConfig
    from nmt.translation import Translator

    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision=precision)
    translator = Translator([load_bundle(folder) for folder in model], config, place, machine.decode_tokens)
    name, first = "standard input", 1
    watched = sys.stderr is not None and sys.stderr.isatty() and not (sys.stdout is not None and sys.stdout.isatty())
    with Progress("translate", None, "lines", visible=watched) as progress:
        for batch in batches(sys.stdin.buffer, name):
            results = translator.translate(batch, nbest, progress.advance, name, first, prefix, sample)
            _write(_shown(results, first, nbest > 1, scores))
            first += len(batch)


def _shown(results: "list[list[Translation]]", first: int, numbered: bool, scores: bool) -> Iterator[str]:
    """The lines of output: one for each translation, and one without text for a blank line."""
    for number, result in enumerate(results, start=first):
        for score, text in [(f"{t.score:.4f}", t.text) for t in result] or [("", "")]:
            yield "\t".join([*([str(number)] if numbered else []), *([score] if scores else []), text])


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
