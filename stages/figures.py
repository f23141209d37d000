"""For people: the paper's figures, drawn from the project's own functions, as SVG files. Not a stage of the pipeline.

python -m stages.figures                                                             what needs no model: positions, learning rate, softmax
python -m stages.figures demo tiny --sentence "Failed to connect to the device."     and where each head looks
python -m stages.figures demo tiny --averaging --lengths                             and loss and BLEU, translated for it: minutes
"""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt import hardware
from nmt.errors import UserError
from nmt.lines import read_exact
from nmt.outputs import whole_file
from stages import params
from stages.command import run

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from nmt.bundle import Bundle
    from nmt.search import DecodeConfig

LENGTHS = (4, 8, 16, 32, 64, 128, 256, 512)  # source tokens
TEXTS = 24  # of each length


def main(
    corpus: Annotated[str, typer.Argument()] = "",
    variant: Annotated[str, typer.Argument()] = "",
    out: Annotated[Path, typer.Option(help="Folder for the files")] = Path("figures"),
    sentence: Annotated[str, typer.Option(help="Draw the attention for this sentence")] = "",
    target: Annotated[str, typer.Option(help="and this translation; without it, for the model's own")] = "",
    averaging: Annotated[bool, typer.Option("--averaging", help="Draw loss and BLEU against the checkpoints averaged")] = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="Draw loss and BLEU against the length")] = False,
    lines: Annotated[int, typer.Option(min=1, help="Of valid, that are translated for --averaging")] = 500,
) -> None:
    """Write the figures. Raises UserError for a corpus, variant or model that is not there, or a sentence that is none."""
    machine = params.load("hardware", hardware.HardwareConfig)
    device = hardware.prepare(machine)
    from nmt.bundle import load_bundle
    from nmt.figures import picture
    from nmt.plots import of_formulas
    from nmt.search import DecodeConfig

    if not (corpus and variant) and (corpus or sentence or averaging or lengths):
        raise UserError("name corpus and variant of a trained model: python -m stages.figures demo tiny …")
    figures: dict[str, Figure] = {name: figure for name, (figure, _) in of_formulas().items()}
    if corpus and variant:
        config = params.load("decode", DecodeConfig)
        folder = Path("runs") / corpus / variant
        bundle = load_bundle(folder / "averaged")
        bundle.model.to(device).eval()
        if sentence:
            figures |= attention(bundle, config, sentence, target, device)
        if averaging:
            figures |= averages(bundle, config, corpus, folder / "checkpoints", lines, device, machine.decode_tokens)
        if lengths:
            figures |= long_sentences(bundle, config, corpus, device, machine.decode_tokens)
    for name, figure in figures.items():
        with whole_file(out / f"{name}.svg") as building:
            building.write_text(picture(figure), encoding="utf-8")
        print(out / f"{name}.svg")


def attention(bundle: "Bundle", config: "DecodeConfig", sentence: str, target: str, device: "torch.device") -> "dict[str, Figure]":
    """The attention of every layer and head for a sentence and a translation, by default the model's. Raises UserError for a blank one."""
    from nmt.attention_maps import attention_maps
    from nmt.batches import padded
    from nmt.lines import is_blank
    from nmt.plots import of_attention
    from nmt.symbols import BOS
    from nmt.translation import Translator, best

    if is_blank(sentence):
        raise UserError("--sentence is blank: give it words")
    if not target:
        [found] = Translator(bundle, config, device, 10_000).translate([sentence], name="--sentence")
        target = best(found)
        print(f"{sentence} -> {target}")
    [src], [tgt] = (bundle.tokenizer.encode([text]) for text in (sentence, target))
    looked_at = padded([src]).to(device)
    so_far = padded([[BOS, *tgt]])[:, :-1].to(device)
    names = [[piece.replace("▁", " ").strip() or "␣" for piece in bundle.tokenizer.pieces(ids)] for ids in (src, tgt)]
    maps = attention_maps(bundle.model, looked_at, so_far)
    return of_attention(maps.encoder, maps.decoder, maps.cross, [*names[0], "end"], ["begin", *names[1]])


def averages(
    bundle: "Bundle", config: "DecodeConfig", corpus: str, checkpoints: Path, lines: int, device: "torch.device", batch_tokens: int
) -> "dict[str, Figure]":
    """Loss on valid and BLEU on its first lines, for the average of the last 1, 2, … checkpoints that were kept."""
    from nmt.checkpoint import checkpoints as checkpoints_in
    from nmt.checkpoint import open_checkpoint
    from nmt.plots import of_averaging
    from nmt.studies import by_average

    kept = [open_checkpoint(folder) for folder in checkpoints_in(checkpoints)]
    if not kept:
        raise UserError(f"{checkpoints} holds no checkpoints: run `dvc checkout` or the stage `train`")
    pairs = list(islice(zip(*(read_exact(path) for path in _texts(bundle, corpus, "valid")), strict=True), lines))
    points = list(by_average(kept, Path("data") / corpus / "shards", bundle.tokenizer, pairs, config, device, batch_tokens))
    at, losses, bleus = zip(*((point.at, point.loss, point.bleu) for point in points), strict=True)
    return of_averaging(at, losses, bleus, "valid")


def long_sentences(bundle: "Bundle", config: "DecodeConfig", corpus: str, device: "torch.device", batch_tokens: int) -> "dict[str, Figure]":
    """Loss and BLEU on lines of the test set joined to ever longer texts, beyond the longest source in training."""
    from nmt.plots import of_lengths
    from nmt.shards import read_shard, shard_files
    from nmt.studies import by_length, joined

    test = params.value(f"corpora.{corpus}.test")[0]
    pairs = list(zip(*(read_exact(path) for path in _texts(bundle, corpus, test)), strict=True))
    shards = Path("data") / corpus / "shards" / "train"
    longest = max(int(read_shard(file).src.lengths.max()) for file in shard_files(shards))
    groups = joined([pair for pair in pairs if pair[0].strip()], LENGTHS, bundle.tokenizer, TEXTS)
    points = list(by_length(bundle, groups, config, device, batch_tokens))
    at, losses, bleus = zip(*((point.at, point.loss, point.bleu) for point in points), strict=True)
    return of_lengths(at, losses, bleus, longest, f"lines of {test} joined")


def _texts(bundle: "Bundle", corpus: str, name: str) -> list[Path]:
    """The raw files of a set, source and target."""
    return [Path("data") / corpus / "raw" / f"{name}.{bundle.config['languages'][side]}" for side in ("src", "tgt")]


if __name__ == "__main__":
    run(main)
