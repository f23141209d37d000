"""Checks params.yaml as a whole, before any work: every section parses, and the sections fit each other.

`make repro`, the flows and the stage `fetch` run it first. It knows all sections, so no stage imports it.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from nmt.average import AverageConfig
from nmt.checkpoint import file_sha256
from nmt.cleaning import CleaningConfig
from nmt.comet import ScoreConfig
from nmt.comet import check as check_comet
from nmt.config import Config, nearest, parse
from nmt.errors import UserError
from nmt.hardware import HardwareConfig
from nmt.model import ModelConfig
from nmt.raw import read_manifest
from nmt.resampling import Sampling
from nmt.search import DecodeConfig
from nmt.sources import Origin, check_corpus
from nmt.tokenizer import TokenizerConfig
from nmt.training import TrainConfig
from stages import params
from stages.command import run

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]  # part of paths and of dotted names


class Corpus(Origin):
    """A section below `corpora`."""

    cleaning: CleaningConfig
    tokenizer: TokenizerConfig
    subword_sampling: Sampling | None


class Variant(Config):
    """A section below `variants`."""

    model: ModelConfig
    train: TrainConfig
    average: AverageConfig


class Reproduce(Config):
    """What a plain `dvc repro` builds."""

    corpora: list[str] = Field(min_length=1)
    variants: list[str] = Field(min_length=1)
    curves: list[str]


class Params(Config):
    """All of params.yaml."""

    seed: int = Field(ge=0, lt=1 << 63)
    reproduce: Reproduce
    corpora: dict[Name, Corpus] = Field(min_length=1)
    variants: dict[Name, Variant] = Field(min_length=1)
    decode: DecodeConfig
    score: ScoreConfig
    hardware: HardwareConfig


def main() -> None:
    """Parse params.yaml and hold its sections against each other and the machine. Raises UserError for what is wrong."""
    everything = parse(Params, params.read(), "")
    check(everything)
    if everything.score.comet:
        check_comet(everything.score.comet)
    _refuse_broken_locks()


def check(everything: Params) -> None:
    """Raise UserError where sections do not fit each other, or where a user's file changed since it was fetched."""
    for kind, chosen, known in (
        ("corpora", everything.reproduce.corpora, list(everything.corpora)),
        ("variants", everything.reproduce.variants, list(everything.variants)),
        ("curves", everything.reproduce.curves, everything.reproduce.variants),
    ):
        for name in chosen:
            if name not in known:
                place = "in reproduce.variants" if kind == "curves" else f"below {kind}"
                raise UserError(f"reproduce.{kind} names {name}, which is not {place}: {nearest(name, known)}")
        if len(set(chosen)) < len(chosen):
            raise UserError(f"reproduce.{kind} names one twice: {', '.join(chosen)}")
    for name, corpus in everything.corpora.items():
        check_corpus(f"corpora.{name}", corpus.source, corpus.held_out, corpus.test)
    for name, variant in everything.variants.items():
        last, kept = variant.average.last, variant.train.checkpoints_kept
        if last > kept:
            raise UserError(f"variants.{name}.average.last is {last}, but variants.{name}.train.checkpoints_kept is only {kept}")
    for name in everything.reproduce.corpora:
        _refuse_changed_files(name)


def _refuse_changed_files(corpus: str) -> None:
    """DVC does not watch the user's own files, so a change in them is found here."""
    manifest = Path("data") / corpus / "manifest.json"
    if not manifest.exists():
        return
    for path, facts in read_manifest(manifest).source.get("files", {}).items():
        if Path(path).exists() and file_sha256(Path(path)) != facts["sha256"]:
            raise UserError(f"{path} has changed since corpora.{corpus} was fetched: run `dvc repro -f fetch@{corpus}` to take it up")


def _refuse_broken_locks() -> None:
    """DVC can be stopped while it writes dvc.lock or the file of its path locks; it cannot read what it then leaves."""
    lock = Path(".dvc/tmp/rwlock")
    if lock.exists() and lock.stat().st_size == 0:
        raise UserError(f"{lock} is empty, as DVC leaves it when it is stopped while writing: unless another dvc runs here, delete it")
    results = Path("dvc.lock")
    if results.exists() and not _is_whole(results):
        raise UserError(
            f"{results} is cut short, as DVC leaves it when it is stopped while writing: unless another dvc runs here, "
            f"`git checkout {results}` or delete it; what stands in the cache is not computed again"
        )


def _is_whole(lock: Path) -> bool:
    try:
        stages = YAML(typ="safe").load(lock.read_text(encoding="utf-8"))["stages"].values()
        files = [file for stage in stages for kind in ("deps", "outs") for file in stage.get(kind, [])]
        return all("cmd" in stage for stage in stages) and all(len(file[file["hash"]]) >= 32 for file in files)
    except (YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        return False


if __name__ == "__main__":
    run(main)
