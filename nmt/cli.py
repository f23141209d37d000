"""The console script `nmt`: what people do with a finished model, beside the pipeline."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmt import hardware
from nmt.errors import UserError
from nmt.lines import read_lines, write_lines
from nmt.outputs import whole_file
from nmt.progress import Progress

if TYPE_CHECKING:
    from nmt.translation import Translation

MOST_BEAMS, MOST_ALPHA = 256, 10.0  # those of nmt.search, which is not imported before an option is wrong: torch takes seconds
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

Beam = Annotated[int, typer.Option(help="Beam size", min=1, max=MOST_BEAMS)]
Alpha = Annotated[float, typer.Option(help="Alpha of Wu et al. 2016", min=0, max=MOST_ALPHA)]


@app.callback()
def _nmt() -> None:
    """Translate with a model that the pipeline trained, and score translations."""


@app.command()
def translate(
    model: Annotated[
        list[Path], typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged; of several, the mean")
    ],
    beam: Beam = 4,
    length_penalty: Alpha = 0.6,
    nbest: Annotated[
        int, typer.Option(help="Translations of each line; more than 1: number of the line, tab, translation", min=1, max=MOST_BEAMS)
    ] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Put the score and a tab before each translation")] = False,
    prefix: Annotated[str, typer.Option(help="What every translation begins with")] = "",
    sample: Annotated[int | None, typer.Option(help="Draw translations instead of searching, with this seed", min=0)] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute")] = "auto",
    precision: Annotated[Literal["float32", "bfloat16", "int8"], typer.Option(help="Of the products")] = "float32",
    source: Annotated[Path | None, typer.Option("--input", help="A file to translate instead of standard input; with --output")] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; stopped, each 2,048 lines that are done are kept")] = None,
) -> None:
    """Translate standard input to standard output, line by line, as they come; or a file, which torchrun may share out to processes."""
    if sample is None and nbest > beam:
        raise UserError(f"--nbest {nbest} is more than the beam holds: raise --beam ({beam}) to as many")
    if (source is None) != (output is None):
        raise UserError("--input and --output go together: give both, or neither for standard input and output")
    if source is not None and output is not None:
        try:
            if source.exists() and not (source.is_file() or source.is_dir()):
                raise UserError(f"--input {source} is no file that can be read more than once: give it as standard input, without --output")
            source.open("rb").close()
        except OSError as error:
            raise UserError(f"--input {source} cannot be read: {error.strerror}") from None
        if output.exists() and not output.is_file():
            raise UserError(f"{output} is no file that could be replaced: name another --output")
        if output.exists() and source.exists() and output.samefile(source):
            raise UserError(f"--output {output} is the --input itself: name another file")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise UserError("--prefix is not UTF-8 text: give plain words") from None
    if source is None and sys.stdin is None:
        raise UserError("there is no standard input: give it the text, nmt translate MODEL < text")
    machine = hardware.HardwareConfig(device=device)
    with _imports():
        place = hardware.prepare(machine)
        hardware.warn_where_slow(precision, place)
        from nmt.bundle import load_bundle
        from nmt.search import DecodeConfig
        from nmt.translation import Translator

    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision=precision)
    bundles = [load_bundle(folder) for folder in model]
    translator = Translator(bundles, config, place, machine.decode_tokens)
    name = "standard input" if source is None else str(source)

    def work(lines: list[str], first: int, report: Callable[[int, float], None]) -> Iterator[str]:
        return _shown(translator.translate(lines, nbest, report, name, first, prefix, sample), first, nbest > 1, scores)

    if source is None or output is None:
        _stream(work, name)
        return
    with _imports():
        from nmt import pieces
        from nmt.ranks import joined

    scratch = output.with_name(output.name + ".pieces")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {output} cannot be written, nor a folder beside it ({error.strerror}): name another file") from None
    settings = {"nbest": nbest, "scores": scores, "prefix": prefix, "sample": sample}
    with _stoppable("the same command goes on, and keeps each 2,048 lines that are done"), joined(place, machine.patience) as ranks:
        with pieces.unfinished(scratch, bundles, config, [source], ranks, **settings) as folder:
            with pieces.progress_of("translate", read_lines(source), ranks) as progress:
                reported = partial(work, report=progress.advance_by)
                count = pieces.finish(folder, "piece", read_lines(source), ranks, reported, progress.skip)
            ranks.meet(0)
            if ranks.first:
                with whole_file(output) as building:
                    write_lines(building, pieces.finished(folder, "piece", count))
        if ranks.first:
            shutil.rmtree(scratch)


def _stream(work: Callable[[list[str], int, Callable[[int, float], None]], Iterable[str]], name: str) -> None:
    """Write what `work` makes of the lines of standard input to standard output as they come, all of those before one that is refused."""
    from nmt.arriving import batches

    first = 1
    watched = sys.stderr is not None and sys.stderr.isatty() and not (sys.stdout is not None and sys.stdout.isatty())
    with Progress("translate", None, "lines", visible=watched) as progress:
        for batch in batches(sys.stdin.buffer, name):
            try:
                shown = list(work(batch, first, progress.advance_by))
            except UserError:
                for number, line in enumerate(batch, start=first):
                    _write(work([line], number, progress.advance_by))
                raise
            _write(shown)
            first += len(batch)


def _shown(results: "list[list[Translation]]", first: int, numbered: bool, scores: bool) -> Iterator[str]:
    """The lines of output: one for each translation, and one without text for a blank line."""
    for number, result in enumerate(results, start=first):
        for score, text in [(f"{t.score:.4f}", t.text) for t in result] or [("", "")]:
            yield "\t".join([*([str(number)] if numbered else []), *([score] if scores else []), text])


@app.command()
def score(
    hypotheses: Annotated[Path, typer.Argument(help="Translations, a line each; plain text or .gz, .xz, .bz2, .zst")],
    references: Annotated[Path, typer.Argument(help="What they are held against, line by line")],
    language: Annotated[str, typer.Option(help="Code of their language, for the Moses tokens")],
    source: Annotated[Path | None, typer.Option(help="The lines that were translated")] = None,
    comet: Annotated[
        str | None, typer.Option(metavar="MODEL", help="COMET too, with this model of the Hugging Face hub, or .ckpt; with --source")
    ] = None,
) -> None:
    """Score translations by every usual metric, after a look at whether they can be scored."""
    if comet and not source:
        raise UserError("COMET reads the source too: name it, --source FILE")
    with _imports():
        from nmt import shifted
        from nmt.comet import CometConfig
        from nmt.comet import comet as comet_scores
        from nmt.evaluation import Texts, evaluate
        from nmt.foreign import LEAST, Profiles
        from nmt.remains import remains
        from nmt.score_table import show

    sides = {path: list(read_lines(path)) for path in (hypotheses, references, *([source] if source else []))}
    counts = {path: len(lines) for path, lines in sides.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        told = ", ".join(f"{path} has {count:,} lines" for path, count in counts.items())
        raise UserError(f"{told}: all must have equally many, and at least one")
    system, reference = sides[hypotheses], sides[references]
    sources = sides[source] if source else [""] * len(reference)
    warnings = [*remains(system, reference), *shifted.judge(sources, reference, system)]
    known = Profiles(sources, reference)
    if source and known.known:
        warnings += known.judge(system, reference)
    else:
        needed = f"takes {LEAST} lines or more" if source else "takes the lines that were translated, --source FILE"
        print(f"note: whether the texts are in the right language was not checked: that {needed}", file=sys.stderr)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    texts = Texts(sources, reference, system, [False] * len(reference))
    model = CometConfig(model=comet, precision="float32") if comet else None
    found = comet_scores({hypotheses.name: (sources, system, reference)}, model, "auto") if model else None
    show(evaluate({hypotheses.name: texts}, language, found)[0])


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
    with _imports():
        device = hardware.prepare(machine)
        from rich.console import Console

        from nmt.export import export
        from nmt.proof import tables
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as by Ctrl-C, nothing half-written is left

    def show(proof: dict[str, Any]) -> None:
        for part in tables(proof):
            Console(width=None if sys.stdout.isatty() else 130).print(part, markup=False, highlight=False)

    with _stoppable(f"nothing was written to {folder}; the same command begins anew"):
        export(model, to, folder, precision, source, reference, device, machine.decode_tokens, show)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="The folder that the stage `average` wrote: runs/<corpus>/<variant>/averaged")],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8000,
    beam: Beam = 4,
    length_penalty: Alpha = 0.6,
    max_sentences: Annotated[int, typer.Option(help="Of a request", min=1)] = 1000,
    max_tokens: Annotated[int, typer.Option(help="Of a sentence", min=1)] = 1000,
    max_bytes: Annotated[int, typer.Option(help="Of a request", min=1)] = 1_000_000,
) -> None:
    """Translate over HTTP: POST /translate, and a page to try it with."""
    machine = hardware.HardwareConfig()
    try:
        with _imports():
            device = hardware.prepare(machine)
            from nmt.bundle import load_bundle
            from nmt.search import DecodeConfig
            from nmt.server import listen
            from nmt.server import serve as run
            from nmt.service import Limits, build_app
            from nmt.translation import Translator
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which nmt serve needs: pip install -e '.[serve]'") from None
    listener = listen(host, port)
    bundle = load_bundle(model)
    config = DecodeConfig(beam_size=beam, length_penalty=length_penalty, max_length_offset=50, stop="exact", precision="float32")
    translator = Translator(bundle, config, device, machine.decode_tokens)
    run(build_app(bundle, translator, Limits(max_sentences, max_tokens, max_bytes)), listener)


@contextmanager
def _imports() -> Iterator[None]:
    """End the process at once when Ctrl-C comes in the block: torch goes on with half of numpy where the import of that is interrupted."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _stoppable(what_next: str) -> Iterator[None]:
    """End the process with a word of what is next when Ctrl-C stops the block."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped: {what_next}", file=sys.stderr)
        sys.exit(130)


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
