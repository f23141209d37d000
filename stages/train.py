"""Stage `train`: shards to the last checkpoints of a model, and the table of its training.

The work happens in a scratch folder named by the fingerprint of all that decides the state at update n: parameters, data,
code. A run that was stopped goes on there; a finished one is laid in place without training again.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from nmt import hardware, slurm, trainjob
from nmt.code import digest, imported_files
from nmt.errors import UserError
from nmt.outputs import whole_file, whole_folder
from nmt.progress import Progress
from nmt.scratch import fingerprint, held, link_or_copy
from stages import params
from stages.command import run

if TYPE_CHECKING:
    from nmt.batches import Update
    from nmt.model import ModelConfig
    from nmt.ranks import Ranks
    from nmt.training import State, TrainConfig

ROOT = Path(__file__).parent.parent
NOT_OF_THE_STATE = {"updates", "checkpoints_kept", "patience"}  # parameters of the run's end, which the state at update n does not know


def main(variant: str, shards: Path, checkpoints: Path, training: Path) -> None:
    """Train the model of the section `variant` on the folder `shards`; write the folder `checkpoints` and the table `training`.

    Where `hardware` asks for several processes, this one starts them and waits. torchrun may start them as well, on several machines that
    see the same files, and with LAUNCHER=slurm or kubernetes a job does. On SIGINT or SIGTERM the state is saved and the exit
    code is the shell's for that signal, 130 or 143.
    """
    signals = _noted_signals()  # before torch is imported, in which an exception may get lost
    machine = params.load("hardware", hardware.HardwareConfig)
    launcher = slurm if slurm.chosen() else trainjob if trainjob.chosen() else None
    if launcher and "RANK" not in os.environ:
        _elsewhere(variant, shards, checkpoints, training, machine, signals)
        return
    compiled = hardware.compiles(machine)
    device = hardware.prepare(machine)
    from nmt import launch
    from nmt.model import ModelConfig
    from nmt.ranks import is_rank, joined
    from nmt.shards import read_shard, shard_files
    from nmt.speed import Speed
    from nmt.training import Diverged, Stopped, TrainConfig, Trainer, resumable, train

    config = params.load(f"{variant}.train", TrainConfig)
    count = launch.processes(machine.processes, device, config.microbatches)
    if count > 1 and not is_rank():
        launch.start(count, "stages.train", sys.argv[1:], signals)
        return
    model_config = params.load(f"{variant}.model", ModelConfig)
    seed = params.seed()
    name = fingerprint(_facts(seed, model_config, config, shards))
    if launcher:
        launcher.check_same(name)
    with joined(device, machine.patience) as ranks, _scratch(Path(machine.scratch) / "train" / name, ranks) as scratch:
        ranks.check_same(name)
        if ranks.first:
            hardware.warn_where_slow(config.precision, device)
        vocab_size = read_shard(shard_files(shards / "train")[0]).vocab_size
        trainer = Trainer(config, model_config, vocab_size, seed, device, ranks, compiled)
        found = ranks.from_first(resumable(scratch / "checkpoints", config) if ranks.first else None)
        if found:
            trainer.resume(found)
            if ranks.first:
                print(f"train: goes on from update {found.step} in {scratch}", flush=True)
        speed = Speed(scratch / "speed.tsv", trainer) if ranks.first else None
        try:
            with Progress("train", config.updates, "updates", done=trainer.state.step, visible=ranks.first) as progress:

                def report(state: "State", update: "Update") -> None:
                    if speed:
                        speed.look(update)
                    loss = state.rows[-1]["loss"] if state.rows else None
                    progress.advance(1, None if loss is None else f"loss {loss:.3f}{speed or ''}")

                train(trainer, shards, scratch / "checkpoints", lambda: bool(signals), report)
        except Diverged:
            if ranks.first:
                raise
            sys.exit(2)  # all processes know it, one says so
        except Stopped as stopped:
            ranks.meet(stopped.step)  # a process that ends early may have a launcher kill the first while it saves
            if ranks.first:
                print(stopped, file=sys.stderr)
            sys.exit(128 + (signals or [signal.SIGTERM])[0])
        if ranks.first:
            if trainer.state.step < config.updates:
                print(
                    f"train: ends at update {trainer.state.step}, for the valid loss of {config.patience} checkpoints was no better",
                    flush=True,
                )
            if not launcher:  # where the process that follows the job does so
                _lay_in_place(scratch / "checkpoints", config, trainer.state.step, checkpoints)
                _write_table(trainer.state.rows, training)


def _elsewhere(
    variant: str, shards: Path, checkpoints: Path, training: Path, machine: hardware.HardwareConfig, signals: Sequence[int]
) -> None:
    """Have a job of LAUNCHER do the training in its scratch folder, or follow the one that does, and lay what it leaves in place.

    A job that was queued for this training by others may have been told another end of it, so that one more follows.
    """
    from nmt import launch
    from nmt.model import ModelConfig
    from nmt.training import TrainConfig, resumable

    config = params.load(f"{variant}.train", TrainConfig)
    request = machine.slurm if slurm.chosen() else machine.kubernetes
    each = max(1, request.gpus_per_node) if machine.processes == "auto" else machine.processes
    launch.check_shares(request.nodes * each, config.microbatches)
    name = fingerprint(_facts(params.seed(), params.load(f"{variant}.model", ModelConfig), config, shards))
    scratch = Path(machine.scratch) / "train" / name
    arguments = ["stages.train", *sys.argv[1:]]
    find: Callable[[], Any]
    submit: Callable[[], Any]
    if slurm.chosen():
        find, submit = partial(slurm.find, name, scratch), partial(slurm.submit, name, arguments, machine.slurm, each, scratch)
    else:
        find, submit = partial(trainjob.find, name, machine.kubernetes), partial(trainjob.submit, name, arguments, machine.kubernetes, each)
    submitted = None
    while True:
        job = find()
        if job is None:
            found = resumable(scratch / "checkpoints", config)
            rows = found.state["progress"]["rows"] if found else []
            if found and found.step >= config.end(rows):
                _lay_in_place(scratch / "checkpoints", config, found.step, checkpoints)
                _write_table(rows, training)
                return
            if submitted:
                raise UserError(
                    f"job {submitted.number} is done, but {scratch} holds no training of {config.updates} updates: params.yaml was "
                    "edited meanwhile, or the nodes do not see the files of this machine"
                )
            job = submitted = submit()
        job.follow(signals)


def _facts(seed: int, model_config: "ModelConfig", config: "TrainConfig", shards: Path) -> dict[str, Any]:
    """All that decides the state at update n."""
    from nmt.checkpoint import file_sha256
    from nmt.shards import shard_files

    files = [file for part in ("train", "valid") for file in [*shard_files(shards / part), *sorted((shards / part).glob("*/*.arrow"))]]
    return {
        "seed": seed,
        "model": model_config.model_dump(),
        "train": config.model_dump(exclude=NOT_OF_THE_STATE),
        "data": {str(file.relative_to(shards)): file_sha256(file) for file in files},
        "code": digest(imported_files("nmt.training", ROOT), ROOT),
    }


@contextmanager
def _scratch(folder: Path, ranks: "Ranks") -> Iterator[Path]:
    """`folder`, held for all processes by the first."""
    with held(folder) if ranks.first else nullcontext():
        yield folder


def _noted_signals() -> list[int]:
    """The SIGINT and SIGTERM that arrive from now on, for the loop to look at after each update."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


def _lay_in_place(source: Path, config: "TrainConfig", end: int, target: Path) -> None:
    """Link the checkpoints that the run, ended at update `end`, is to leave behind, without what only training needs, into `target`."""
    from nmt.checkpoint import WEIGHTS, open_checkpoint, write_state

    with whole_folder(target) as building:
        for step in config.kept_steps(end):
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
