"""Stage `train`: shards to the last checkpoints of a model, and the table of its training.

The work happens in a scratch folder named by the fingerprint of all that decides the state at update n: parameters, data,
code. A run that was stopped goes on there; a finished one is laid in place without training again.
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from nmt import hardware
from nmt.code import digest, imported_files
from nmt.outputs import whole_file, whole_folder
from nmt.progress import Progress
from nmt.scratch import fingerprint, held, link_or_copy
from stages import params
from stages.command import run

if TYPE_CHECKING:
    from nmt.training import State, TrainConfig

ROOT = Path(__file__).parent.parent
NOT_OF_THE_STATE = {"updates", "checkpoints_kept"}  # parameters of the run's end, which the state at update n does not know


def main(variant: str, shards: Path, checkpoints: Path, training: Path) -> None:
    """Train the model of the section `variant` on the folder `shards`; write the folder `checkpoints` and the table `training`.

    On SIGINT or SIGTERM the state is saved and the exit code is the shell's for that signal, 130 or 143.
    """
    signals = _noted_signals()  # before torch is imported, in which an exception may get lost
    machine = params.load("hardware", hardware.HardwareConfig)
    device = hardware.prepare(machine)
    from nmt.checkpoint import file_sha256
    from nmt.model import ModelConfig
    from nmt.shards import read_shard, shard_files
    from nmt.training import Stopped, TrainConfig, Trainer, resumable, train

    config = params.load(f"{variant}.train", TrainConfig)
    hardware.warn_where_slow(config.precision, device)
    model_config = params.load(f"{variant}.model", ModelConfig)
    seed = params.seed()
    files = [file for part in ("train", "valid") for file in shard_files(shards / part)]
    facts = {
        "seed": seed,
        "model": model_config.model_dump(),
        "train": config.model_dump(exclude=NOT_OF_THE_STATE),
        "data": {str(file.relative_to(shards)): file_sha256(file) for file in files},
        "code": digest(imported_files("nmt.training", ROOT), ROOT),
    }
    with held(Path(machine.scratch) / "train" / fingerprint(facts)) as scratch:
        trainer = Trainer(config, model_config, read_shard(files[0]).vocab_size, seed, device)
        found = resumable(scratch / "checkpoints", config)
        if found:
            trainer.resume(found)
            print(f"train: goes on from update {found.step} in {scratch}", flush=True)
        with Progress("train", config.updates, "updates", done=trainer.state.step) as progress:

            def report(state: "State") -> None:
                loss = state.rows[-1]["loss"] if state.rows else None
                progress.advance(1, None if loss is None else f"loss {loss:.3f}")

            try:
                train(trainer, shards, scratch / "checkpoints", lambda: bool(signals), report)
            except Stopped as stopped:
                print(stopped, file=sys.stderr)
                sys.exit(128 + signals[0])
        _lay_in_place(scratch / "checkpoints", config, checkpoints)
        _write_table(trainer.state.rows, training)


def _noted_signals() -> list[int]:
    """The SIGINT and SIGTERM that arrive from now on, for the loop to look at after each update."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


def _lay_in_place(source: Path, config: "TrainConfig", target: Path) -> None:
    """Link the checkpoints that the run is to leave behind, without what only training needs, into the folder `target`."""
    from nmt.checkpoint import WEIGHTS, open_checkpoint, write_state

    with whole_folder(target) as building:
        for step in config.kept_steps:
            checkpoint = open_checkpoint(source / f"step-{step:08}")
            folder = building / checkpoint.folder.name
            folder.mkdir()
            link_or_copy(checkpoint.folder / WEIGHTS, folder / WEIGHTS)
            kept = {key: checkpoint.state[key] for key in ("step", "seed", "vocab_size", "model")}
            kept |= {"train": config.model_dump(), "sha256": {WEIGHTS: checkpoint.sha256}}
            write_state(folder, kept)


def _write_table(rows: list[dict[str, float | int | None]], path: Path) -> None:
    """Tab-separated, one row per interval; a value that was not measured is empty."""
    columns = list(rows[0])
    lines = ["\t".join(columns), *("\t".join("" if row[c] is None else f"{row[c]:.9g}" for c in columns) for row in rows)]
    with whole_file(path) as building:
        building.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
