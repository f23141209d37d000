"""The console script `nmt`: what people do with a finished model, beside the pipeline."""

import os
import signal
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmt import hardware
from nmt.errors import UserError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

BATCH_LINES = 1000  # read before the first translation is written


@app.callback()
def _nmt() -> None:
    """Translate with a model that the pipeline trained."""


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
def export(
    model: Annotated[Path, typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged")],
    folder: Annotated[Path, typer.Argument(help="The folder to write: new, empty, or an earlier export")],
    to: Annotated[Literal["ctranslate2", "transformers"], typer.Option(help="The engine that is to read it")],
    precision: Annotated[
        Literal["float32", "float16", "int8"], typer.Option(help="Of the weights; the last two for ctranslate2")
    ] = "float32",
    source: Annotated[Path | None, typer.Option(help="The text to prove the export with; else the corpus's validation set")] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation, line by line")] = None,
) -> None:
    """Write the model for another engine, and prove that it translates there as it does here."""
    if (source is None) != (reference is None):
        raise UserError("--source and --reference go together: name both, or none for the corpus's validation set")
    machine = hardware.HardwareConfig()
    device = hardware.prepare(machine)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as by Ctrl-C, nothing half-written is left
    from rich.console import Console

    from nmt.export import export
    from nmt.proof import tables

    def show(proof: dict[str, Any]) -> None:
        for part in tables(proof):
            Console(width=None if sys.stdout.isatty() else 130).print(part, markup=False, highlight=False)

    export(model, to, folder, precision, source, reference, device, machine.decode_tokens, show)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged")],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8000,
    beam: Annotated[int, typer.Option(help="Beam size", min=1)] = 4,
    length_penalty: Annotated[float, typer.Option(help="Alpha of Wu et al. 2016", min=0)] = 0.6,
    max_sentences: Annotated[int, typer.Option(help="Of a request", min=1)] = 1000,
    max_tokens: Annotated[int, typer.Option(help="Of a sentence", min=1)] = 1000,
    max_bytes: Annotated[int, typer.Option(help="Of a request", min=1)] = 1_000_000,
) -> None:
    """Translate over HTTP: POST /translate, and a page to try it with."""
    machine = hardware.HardwareConfig()
    device = hardware.prepare(machine)
    from nmt.bundle import load_bundle
    from nmt.search import DecodeConfig
    from nmt.translation import Translator

    try:
        from nmt.server import listen
        from nmt.server import serve as run
        from nmt.service import Limits, build_app
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which nmt serve needs: pip install -e '.[serve]'") from None
    listener = listen(host, port)
    bundle = load_bundle(model)
    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision="float32")
    translator = Translator(bundle, config, device, machine.decode_tokens)
    run(build_app(bundle, translator, Limits(max_sentences, max_tokens, max_bytes)), listener)


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
