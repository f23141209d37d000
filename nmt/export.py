"""A finished model in another engine's format, with the proof that it says the same there.

    DIR/    the engine's own files, the tokenizer, and proof.json

A format is a module `nmt.export_<format>` with `write`, which puts the model into a folder, and `Engine`, which translates from there. The
folder takes its name only after the proof; a failed export leaves nothing.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from nmt.alignment import misaligned
from nmt.bundle import load_bundle
from nmt.errors import UserError
from nmt.lines import is_blank, read_lines
from nmt.model import ModelConfig
from nmt.outputs import whole_folder
from nmt.progress import Progress
from nmt.proof import Search, Text, failures, prove

Format = Literal["ctranslate2", "transformers"]
Precision = Literal["float32", "float16", "int8"]

PROOF = "proof.json"
FEWEST = 200  # lines that say something of a difference of BLEU


def export(
    model: Path,
    to: Format,
    folder: Path,
    precision: Precision,
    source: Path | None,
    reference: Path | None,
    device: torch.device,
    tokens: int,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Export the model folder `model` to `folder` and prove it on the text in `source` and `reference` (None: its corpus's valid set).

    The proof is handed to `show`, proven or not. Raises UserError for a model that the format cannot hold, a folder that must not be
    replaced, a text that is none, and an export that fails its proof.
    """
    engine_of = _format(to)
    bundle = load_bundle(model)
    check(bundle.model.config, to, precision)
    text = read_text(*(source, reference) if source and reference else valid_set(model, bundle.config))
    refuse_few(text, precision)
    with export_folder(folder, model) as building:
        engine_of.write(bundle, model, building, precision)
        engine = engine_of.Engine(building, device)
        work = 2 * sum(map(len, text.sources))
        with Progress(f"prove {to}", 2 * len(text.sources), "lines", work=work) as progress:
            proof = prove(bundle, engine, precision, text, Search(), device, tokens, progress.advance_by)
        show(proof)
        if failed := failures(proof):
            raise UserError(f"the exported model does not say what {model} says, so nothing was written to {folder}: {'; '.join(failed)}")
        (building / PROOF).write_text(json.dumps(proof, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _open_to_readers(building)


def check(model: ModelConfig, to: Format, precision: Precision) -> None:
    """Raise UserError that names what the format cannot hold."""
    for name in ("d_k", "d_v"):
        if getattr(model, name) * model.heads != model.d_model:
            raise UserError(
                f"model.{name} is {getattr(model, name)}, which {to} cannot hold: there it is always model.d_model / model.heads, "
                f"here {model.d_model} / {model.heads}"
            )
    if model.positions != "sinusoidal":
        raise UserError(f"model.positions is {model.positions}, which cannot be exported to {to}: only sinusoidal positions can")
    if to == "transformers" and precision != "float32":
        raise UserError(
            f"--precision {precision} is for ctranslate2: transformers takes float32 and is told the dtype when it loads a model"
        )


def valid_set(model: Path, config: dict[str, Any]) -> tuple[Path, Path]:
    """Where the pipeline keeps the validation set of runs/<corpus>/<variant>/averaged, source and reference. Raises UserError."""
    variant = model.resolve().parent
    raw = variant.parents[2] / "data" / variant.parent.name / "raw" if len(variant.parents) > 2 else None
    languages = config.get("languages")
    if raw and languages:
        source, reference = (raw / f"valid.{languages[side]}" for side in ("src", "tgt"))
        if source.is_file() and reference.is_file():
            return source, reference
    raise UserError(
        f"there is no validation set beside {model} to prove the export with (it would be data/<corpus>/raw/valid.*): name a text with "
        "--source and --reference"
    )


def read_text(source: Path, reference: Path) -> Text:
    """The two files, line by line. Raises UserError when they do not belong together or hold nothing to translate."""
    sources, references = list(read_lines(source)), list(read_lines(reference))
    if len(sources) != len(references):
        raise misaligned(str(source), [len(line) for line in sources], str(reference), [len(line) for line in references])
    if all(map(is_blank, sources)):
        raise UserError(f"{source} holds no text to prove the export with: name another one")
    return Text(source.name, reference.name, sources, references)


def refuse_few(text: Text, precision: Precision) -> None:
    """Raise UserError where BLEU, by which all but float32 is judged, would be that of a handful of lines."""
    lines = sum(not is_blank(source) for source in text.sources)
    if precision != "float32" and lines < FEWEST:
        raise UserError(
            f"{text.source_name} has {lines} lines to translate, too few to tell what {precision} costs in BLEU: "
            f"name a text of {FEWEST} or more with --source and --reference"
        )


@contextmanager
def export_folder(folder: Path, model: Path) -> Iterator[Path]:
    """A folder to build the export in, which becomes `folder` when the block ends well and is gone when it does not.

    Raises UserError when `folder` must not be replaced: only an earlier export or an empty folder may be.
    """
    folder, model = folder.resolve(), model.resolve()
    if folder == model or model in folder.parents:
        raise UserError(f"{folder} lies in the model's own folder, which belongs to the pipeline: name another one")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder for the exported model")
    if folder.exists() and not (folder / PROOF).is_file() and any(folder.iterdir()):
        raise UserError(f"{folder} holds something else than an exported model: name another folder, or empty this one")
    try:
        with whole_folder(folder) as building:
            yield building
    except OSError as error:
        raise UserError(f"the export could not be written to {folder}: {error.strerror or error}") from None


def _open_to_readers(folder: Path) -> None:
    """Give the files the mode that the user's umask says; some libraries write theirs for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def _format(to: Format) -> Any:
    """The module of the format. Raises UserError when its engine is not installed."""
    try:
        if to == "ctranslate2":
            from nmt import export_ctranslate2 as found
        else:
            from nmt import export_transformers as found  # type: ignore[no-redef]
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which the export to {to} needs: pip install -e '.[export]'") from None
    return found
