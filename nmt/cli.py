"""The console script `nmt`: what people do with a finished model, beside the pipeline."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt import hardware
from nmt.errors import UserError
from nmt.lines import read_lines, write_lines
from nmt.outputs import whole_file
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
    source: Annotated[Path | None, typer.Option("--input", help="A file to translate instead of standard input; with --output")] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; stopped, the same command goes on where it was")] = None,
) -> None:
    """Translate standard input to standard output, line by line, as they come; or a file, which torchrun may share out to processes."""
    if sample is None and nbest > beam:
        raise UserError(f"--nbest {nbest} is more than the beam holds: raise --beam ({beam}) to as many")
    if (source is None) != (output is None):
        raise UserError("--input and --output go together: give both, or neither for standard input and output")
    if source is None and sys.stdin is None:
        raise UserError("there is no standard input: give it the text, nmt translate MODEL < text")
    machine = hardware.HardwareConfig(device=device)
    place = hardware.prepare(machine)
    hardware.warn_where_slow(precision, place)
    from nmt.bundle import load_bundle
    from nmt.search import DecodeConfig
    from nmt.translation import Translator

    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision=precision)
    bundles = [load_bundle(folder) for folder in model]
    translator = Translator(bundles, config, place, machine.decode_tokens)
    name = "standard input" if source is None else str(source)

    def work(lines: list[str], first: int, report: Callable[[int], None]) -> Iterator[str]:
        return _shown(translator.translate(lines, nbest, report, name, first, prefix, sample), first, nbest > 1, scores)

    if source is None or output is None:
        _stream(work, name)
        return
    from nmt import pieces
    from nmt.ranks import joined

    scratch = output.with_name(output.name + ".pieces")
    settings = {"nbest": nbest, "scores": scores, "prefix": prefix, "sample": sample}
    lines = sum(1 for _ in read_lines(source))
    with joined(place, machine.patience) as ranks:
        with pieces.unfinished(scratch, bundles, config, [source], ranks, **settings) as folder:
            with Progress("translate", pieces.share(lines, ranks), "lines", visible=ranks.first) as progress:
                reported = partial(work, report=progress.advance)
                count = pieces.finish(folder, "piece", read_lines(source), ranks, reported, progress.advance)
            ranks.meet(0)
            if ranks.first:
                with whole_file(output) as building:
                    write_lines(building, pieces.finished(folder, "piece", count))
        if ranks.first:
            shutil.rmtree(scratch)


def _stream(work: Callable[[list[str], int, Callable[[int], None]], Iterable[str]], name: str) -> None:
    """Write what `work` makes of the lines of standard input to standard output as they come."""
    from nmt.arriving import batches

    first = 1
    watched = sys.stderr is not None and sys.stderr.isatty() and not (sys.stdout is not None and sys.stdout.isatty())
    with Progress("translate", None, "lines", visible=watched) as progress:
        for batch in batches(sys.stdin.buffer, name):
            _write(work(batch, first, progress.advance))
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
