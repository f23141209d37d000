"""For people: what a training will take, before the first hour of it. Not a stage of the pipeline.

python -m stages.forecast base wmt14-en-de                                     arithmetic, and activations counted in one small forward pass
python -m stages.forecast base wmt14-en-de --updates 5 --devices 1,8 --price 2.5 --watts 700      and a few updates, measured here
python -m stages.forecast base wmt14-en-de --table pipelines/table3.yaml       parameters of the rows of Table 3
"""

import copy
import csv
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from nmt import hardware
from nmt.config import nearest, parse
from nmt.errors import UserError
from nmt.progress import clock
from stages import names, params
from stages.command import run

if TYPE_CHECKING:
    import torch

    from nmt.forecast import Work
    from nmt.model import ModelConfig
    from nmt.training import TrainConfig

PAPER = {"base": (12.0, 8), "big": (84.0, 8), "big-en-fr": (84.0, 8)}  # §5.2: hours of a training and its GPUs
GIB = 2**30


def main(
    variant: str,
    corpus: str,
    table: Annotated[Path | None, typer.Option(help="Only the parameters of the rows in this file, such as pipelines/table3.yaml")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="The table's rows as CSV: row, parameters")] = False,
    sentence: Annotated[int, typer.Option(min=1, help="Tokens of a sentence, assumed where the corpus has no shards yet")] = 28,
    updates: Annotated[int, typer.Option(min=0, help="Updates to measure on this machine")] = 0,
    devices: Annotated[str, typer.Option(help="Numbers of devices to reckon with, such as 1,8")] = "1",
    price: Annotated[float, typer.Option(min=0, help="Of an hour of one device")] = 0,
    watts: Annotated[float, typer.Option(min=0, help="That one device draws")] = 0,
) -> None:
    """Print the forecast. Raises UserError for a variant, corpus, row or number that is not there or not right."""
    counts = [int(part) if part.strip().isdigit() else 0 for part in devices.split(",")]
    if min(counts) < 1:
        raise UserError(f"--devices is {devices}: it takes numbers above 0, such as 1,8")
    machine = params.load("hardware", hardware.HardwareConfig)
    compiled = hardware.compiles(machine)
    device = hardware.prepare(machine)
    from nmt.forecast import Work
    from nmt.model import ModelConfig
    from nmt.shards import read_shard, shard_files
    from nmt.training import TrainConfig

    section = params.value(f"variants.{names.check('variants', variant)}")
    vocab_size = params.value(f"corpora.{names.check('corpora', corpus)}.tokenizer.vocab_size")
    shards = Path("data") / corpus / "shards"
    if (shards / "train").is_dir():
        vocab_size = read_shard(shard_files(shards / "train")[0]).vocab_size
    if table is not None:
        _print_rows(table, variant, section, vocab_size, as_csv)
        return
    model, train = (
        parse(kind, section[name], f"variants.{variant}.{name}") for name, kind in (("model", ModelConfig), ("train", TrainConfig))
    )
    assert isinstance(model, ModelConfig) and isinstance(train, TrainConfig)
    known = (shards / "train").is_dir()
    work = Work.of_shards(shards / "train", train.tokens_per_update) if known else Work.assumed(train.tokens_per_update, sentence)
    console = Console(highlight=False, soft_wrap=True)
    lengths = f"of {shards}" if known else f"assumed: every sentence has {sentence} tokens, for {shards} is not there yet"
    console.print(f"[bold]{variant} on {corpus}[/bold], {vocab_size:,} pieces; lengths {lengths}")
    console.print(f"average update: {work.pairs:,.0f} pairs, {work.src:,.0f} source and {work.tgt:,.0f} target tokens\n")
    operations = _print_arithmetic(console, variant, model, train, vocab_size, work)
    _print_memory(console, model, train, vocab_size, shards if known else None, sentence)
    if updates:
        rate = _measure(model, train, vocab_size, shards if known else None, sentence, updates, device, compiled)
        _print_time(console, rate, operations, train, work, counts, price, watts, str(device))


def rows_of(table: Path, variant: str, section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The variant's section as each row of the table file changes it, by the row's name. Raises UserError for what is not there."""
    try:
        content = YAML(typ="safe", pure=True).load(table.read_text(encoding="utf-8"))
        variants = content["variants"]
        changes = variants[variant]
    except OSError as error:
        raise UserError(f"{table} cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError, TypeError):
        raise UserError(f"{table} is no table of rows: name a file such as pipelines/table3.yaml") from None
    except KeyError:
        raise UserError(f"{table} has no rows over the variant {variant}: {nearest(variant, list(content['variants']))}") from None
    found = {}
    for row, own in changes["rows"].items():
        found[row] = copy.deepcopy(section)
        for name, value in {**changes["common"], **own}.items():
            part, _, key = name.partition(".")
            if key not in found[row].get(part, {}):
                raise UserError(f"{table}, row {row}: variants.{variant} has no {name}")
            found[row][part][key] = value
    return found


def _print_rows(table: Path, variant: str, section: dict[str, Any], vocab_size: int, as_csv: bool) -> None:
    """The parameters of each row, by formula and by counting, beside the paper's."""
    from nmt.forecast import by_formula, counted, total
    from nmt.model import ModelConfig

    models = {
        row: parse(ModelConfig, found["model"], f"{table}, row {row}: model") for row, found in rows_of(table, variant, section).items()
    }
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([("row", "parameters"), *((row, total(by_formula(model, vocab_size))) for row, model in models.items())])
        return
    printed = YAML(typ="safe", pure=True).load(table.read_text(encoding="utf-8"))["paper"]
    shown = Table("row", "by formula", "by counting", "the paper's", title=f"parameters over {variant}, {vocab_size:,} pieces")
    for column in shown.columns[1:]:
        column.justify = "right"
    for row, model in models.items():
        paper = printed[row]["parameters"]
        numbers = (total(by_formula(model, vocab_size)), total(counted(model, vocab_size)))
        shown.add_row(row, *(f"{number:,}" for number in numbers), "" if paper is None else f"{paper} M")
    console = Console(highlight=False)
    console.print(shown)
    console.print(
        "The paper does not say which vocabulary its column is for: about 41,000 pieces meet it, about 36,000 for big.", soft_wrap=True
    )


def _print_arithmetic(console: Console, variant: str, model: "ModelConfig", train: "TrainConfig", vocab_size: int, work: "Work") -> float:
    """Parameters and operations by component; returns the operations of an update."""
    from nmt.forecast import COMPONENTS, by_formula, counted, flop, gpu_time_cost, total

    parameters, built, operations = by_formula(model, vocab_size), counted(model, vocab_size), flop(model, vocab_size, work)
    shown = Table("arithmetic", "parameters", "counted", "FLOP an update")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name in COMPONENTS:
        shown.add_row(name, f"{parameters[name]:,}", f"{built[name]:,}", f"{operations[name]:.3g}" if name in operations else "")
    shown.add_section()
    shown.add_row("all", f"{total(parameters):,}", f"{total(built):,}", f"{total(operations):.3g}")
    console.print(shown)
    found = total(operations) * train.updates
    console.print(f"in all {found:.3g} FLOP for {train.updates:,} updates: the matrix products, forward and backward, without padding")
    if variant in PAPER:
        hours, gpus = PAPER[variant]
        cost = gpu_time_cost(hours, gpus)
        console.print(
            f"the paper's {cost:.2g} is {hours:g} h x {gpus} GPUs x 9.5 TFLOP/s, time and not arithmetic; "
            f"the arithmetic is {found / cost:.0%} of it"
        )
    return float(total(operations))


def _print_memory(
    console: Console, model: "ModelConfig", train: "TrainConfig", vocab_size: int, shards: Path | None, sentence: int
) -> None:
    """What a training holds when it computes its largest piece."""
    from nmt.batches import largest_piece, rounded
    from nmt.forecast import activation_bytes, by_formula, state_bytes, total

    if shards:
        piece = largest_piece(shards / "train", train.tokens_per_update, train.microbatches, params.seed())
        rows, src, tgt = len(piece.src), piece.src.size(1), piece.tgt_out.size(1)
    else:
        rows, src, tgt = rounded(train.tokens_per_update // train.microbatches // sentence), rounded(sentence), rounded(sentence)
    parts = state_bytes(total(by_formula(model, vocab_size)), train.microbatches)
    parts["activations"] = activation_bytes(model, vocab_size, rows, src, tgt, train.precision, train.label_smoothing)
    shown = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    console.print(f"\nmemory of a process, GiB: {shown}; in all {total(parts) / GIB:.2f}")
    console.print(f"the first three are arithmetic, activations are counted for the largest piece, {rows} pairs of {src} and {tgt} tokens")


def _measure(
    model: "ModelConfig",
    train: "TrainConfig",
    vocab_size: int,
    shards: Path | None,
    sentence: int,
    count: int,
    device: "torch.device",
    compiled: bool,
) -> float:
    """Target tokens a second of one process on this machine, over `count` updates after one that warms up."""
    import numpy as np
    import torch

    from nmt.batches import Update, collate, updates
    from nmt.symbols import EOS
    from nmt.training import Trainer

    trainer = Trainer(train, model, vocab_size, params.seed(), device, compiled=compiled)
    if shards:
        plan = list(islice(updates(shards / "train", train.tokens_per_update, train.microbatches, params.seed()), count + 1))
    else:
        rng, pairs = np.random.default_rng(1), max(1, train.tokens_per_update // sentence // train.microbatches)
        ids = rng.integers(EOS + 1, vocab_size, (train.microbatches, pairs, 2, sentence - 1))
        pieces = {number: collate([(src, tgt) for src, tgt in piece]) for number, piece in enumerate(ids)}
        tokens = sum(piece.tokens for piece in pieces.values())
        plan = [Update([], tokens, len(pieces), pieces)] * (count + 1)
    trainer.update(plan[0])
    began = time.perf_counter()
    for update in plan[1:]:
        trainer.update(update)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return sum(update.tokens for update in plan[1:]) / (time.perf_counter() - began)


def _print_time(
    console: Console,
    rate: float,
    operations: float,
    train: "TrainConfig",
    work: "Work",
    counts: list[int],
    price: float,
    watts: float,
    device: str,
) -> None:
    """Time, energy and cost of the whole training, from the measured speed of one process."""
    speed = rate / work.tgt * operations
    console.print(f"\nmeasured here, one process on {device}: {rate:,.0f} target tokens/s, {speed / 1e12:.3g} TFLOP/s")
    shown = Table("devices", "time", *(["energy, kWh"] if watts else []), *(["cost"] if price else []))
    for column in shown.columns:
        column.justify = "right"
    for count in counts:
        hours = train.updates * work.tgt / rate / count / 3600
        energy, cost = hours * count * watts / 1000, hours * count * price
        shown.add_row(str(count), clock(hours * 3600), *([f"{energy:,.2f}"] if watts else []), *([f"{cost:,.2f}"] if price else []))
    console.print(shown)
    console.print("from that speed by arithmetic: as if n devices were n times as fast as this one, which no machine quite is")


if __name__ == "__main__":
    run(main)
