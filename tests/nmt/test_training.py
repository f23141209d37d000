"""nmt.training: update n is a function of (seed, n), whatever happens between the updates."""

import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nmt.training
from nmt.batches import Batch, Update, collate
from nmt.checkpoint import OPTIMIZER, STATE, WEIGHTS, checkpoints, open_checkpoint, step_of
from nmt.config import parse
from nmt.errors import UserError
from nmt.model import ModelConfig, Transformer
from nmt.symbols import EOS, PAD
from nmt.training import SKIPPED_IN_A_ROW, Outcome, Row, Stopped, TrainConfig, Trainer, resumable, train
from nmt.validation import HeldOutLoss
from tests.copy_task import FIRST, MODEL, TRAIN, VOCAB, copies, first_updates, one_update, trainer, write_corpus


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("shards"))


def run(folder: Path, shards: Path, stop: Callable[[], bool] = lambda: False, **changes: Any) -> Trainer:
    """Train as the stage does: go on from what is in the folder."""
    found = trainer(**changes)
    checkpoint = resumable(folder, found.config)
    if checkpoint:
        found.resume(checkpoint)
    train(found, shards, folder, stop)
    return found


def stopping_after(count: int) -> Callable[[], bool]:
    """Says stop when it is asked for the `count`th time."""
    asked = iter(range(1, 1_000_000))
    return lambda: next(asked) >= count


def steps(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints(folder)]


def kept(folder: Path, config: TrainConfig) -> dict[int, bytes]:
    """The weights that a run leaves behind, by step."""
    return {step: (folder / f"step-{step:08}" / WEIGHTS).read_bytes() for step in config.kept_steps(config.updates)}


def assert_equal_ends(folder: Path, run_here: Trainer, other: Path, run_there: Trainer) -> None:
    assert kept(folder, run_here.config) == kept(other, run_there.config)
    assert run_here.state == run_there.state
    last = f"step-{run_here.config.updates:08}"
    assert (folder / last / OPTIMIZER).read_bytes() == (other / last / OPTIMIZER).read_bytes()


def poison(shards: Path, monkeypatch: pytest.MonkeyPatch, broken: range) -> None:
    """Make the loss of the updates `broken` infinite, as one bad pair does."""
    real_apply, real_sums, step = Trainer.apply, nmt.training.batch_sums, 0

    def apply(self: Trainer, update: Update) -> Outcome:
        nonlocal step
        step = self.state.step + 1
        return real_apply(self, update)

    def sums(*arguments: Any) -> tuple[Tensor, Tensor]:
        loss, nll = real_sums(*arguments)
        return (loss * math.inf, nll) if step in broken else (loss, nll)

    monkeypatch.setattr(Trainer, "apply", apply)
    monkeypatch.setattr(nmt.training, "batch_sums", sums)


def gradients(of: Trainer) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in of.model.named_parameters() if parameter.grad is not None}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.slow
@pytest.mark.essential
def test_the_model_learns_to_copy(tmp_path: Path, shards: Path) -> None:
    trained = run(tmp_path, shards, updates=160, tokens_per_update=400, microbatches=1, warmup_updates=100, checkpoint_every=80)
    counts = Counter(token for sentence, _ in copies(40, 2) for token in [*sentence, EOS])
    shares = [count / counts.total() for count in counts.values()]
    without_source = -sum(share * math.log(share) for share in shares)  # the best that is possible without looking at the source
    measured = [row["valid_loss"] for row in trained.state.rows if row["valid_loss"] is not None]
    assert len(measured) == 2 and measured[0] > measured[1]
    assert measured[1] < 0.7 * without_source
    assert trained.state.rows[0]["loss"] > trained.state.rows[-1]["loss"]


def test_stopped_after_any_update_and_resumed_is_the_same_as_never_stopped(tmp_path: Path, shards: Path) -> None:
    changes = dict(updates=8, checkpoint_every=4, checkpoints_kept=2)
    whole = run(tmp_path / "whole", shards, **changes)
    assert whole.state.step == 8 and [row["update"] for row in whole.state.rows] == list(range(1, 9))
    for k in range(1, 8):
        folder = tmp_path / str(k)
        with pytest.raises(Stopped, match=f"stopped at update {k}, which is saved") as stopped:
            run(folder, shards, stopping_after(k), **changes)
        assert stopped.value.step == k and steps(folder)[-1] == k
        assert_equal_ends(folder, run(folder, shards, **changes), tmp_path / "whole", whole)


def test_stopped_after_every_single_update_is_the_same_as_never_stopped(tmp_path: Path, shards: Path) -> None:
    changes = dict(updates=8, checkpoint_every=4, checkpoints_kept=2)
    whole = run(tmp_path / "whole", shards, **changes)
    for _ in range(7):
        with pytest.raises(Stopped):
            run(tmp_path / "often", shards, lambda: True, **changes)
    assert_equal_ends(tmp_path / "often", run(tmp_path / "often", shards, **changes), tmp_path / "whole", whole)
    assert steps(tmp_path / "often") == [4, 8]


def test_many_stops_between_two_scheduled_checkpoints_do_not_fill_the_disk(tmp_path: Path, shards: Path) -> None:
    for _ in range(6):
        with pytest.raises(Stopped):
            run(tmp_path, shards, lambda: True, updates=80, checkpoint_every=40, checkpoints_kept=1)
    assert steps(tmp_path) == [6]


def test_a_stop_that_comes_with_the_last_update_is_no_stop(tmp_path: Path, shards: Path) -> None:
    assert run(tmp_path, shards, stopping_after(8)).state.step == 8


def test_a_finished_run_is_read_and_not_trained_again(tmp_path: Path, shards: Path) -> None:
    first = run(tmp_path, shards)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = run(tmp_path, shards)
    assert again.state == first.state
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_is_left_is_the_last_scheduled_checkpoints_and_two_of_them_whole(tmp_path: Path, shards: Path) -> None:
    run(tmp_path, shards, updates=8, checkpoint_every=1, checkpoints_kept=4)
    assert steps(tmp_path) == [5, 6, 7, 8]
    assert [step_of(path) for path in checkpoints(tmp_path) if (path / OPTIMIZER).exists()] == [7, 8]
    shutil.rmtree(tmp_path)
    run(tmp_path, shards, updates=8, checkpoint_every=1, checkpoints_kept=1)
    assert steps(tmp_path) == [7, 8]


@pytest.mark.parametrize("updates", [7, 8])
def test_the_end_is_a_checkpoint_even_between_two_scheduled_ones(tmp_path: Path, shards: Path, updates: int) -> None:
    run(tmp_path, shards, updates=updates, checkpoint_every=4, checkpoints_kept=2)
    assert steps(tmp_path) == [4, updates]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(dict(updates=4, checkpoints_kept=2), dict(updates=8, checkpoints_kept=2), id="more updates"),
        pytest.param(dict(updates=8, checkpoints_kept=2), dict(updates=4, checkpoints_kept=2), id="fewer updates"),
        pytest.param(dict(updates=8, checkpoints_kept=4), dict(updates=4, checkpoints_kept=1), id="fewer updates that are still there"),
        pytest.param(dict(updates=8, checkpoints_kept=1), dict(updates=8, checkpoints_kept=4), id="more checkpoints"),
        pytest.param(dict(updates=8, checkpoints_kept=4), dict(updates=8, checkpoints_kept=1), id="fewer checkpoints"),
        pytest.param(
            dict(updates=15, checkpoint_every=20, checkpoints_kept=1),
            dict(updates=20, checkpoint_every=20, checkpoints_kept=1),
            id="an end between two rows",
        ),
        pytest.param(dict(updates=30, checkpoint_every=20), dict(updates=40, checkpoint_every=20), id="an end at a row"),
        pytest.param(dict(updates=40, checkpoint_every=20), dict(updates=31, checkpoint_every=20), id="fewer, to between two rows"),
    ],
)
def test_another_end_in_the_same_folder_is_the_same_as_planned_so_from_the_start(
    tmp_path: Path, shards: Path, first: dict[str, int], then: dict[str, int]
) -> None:
    run(tmp_path / "other", shards, **first)
    here = run(tmp_path / "other", shards, **then)
    there = run(tmp_path / "planned", shards, **then)
    assert kept(tmp_path / "other", here.config) == kept(tmp_path / "planned", there.config)
    assert here.state == there.state


def test_a_stop_that_becomes_the_end_gets_the_row_of_an_end(tmp_path: Path, shards: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path / "here", shards, stopping_after(12), updates=20, checkpoint_every=20, checkpoints_kept=1)
    here = run(tmp_path / "here", shards, updates=12, checkpoint_every=20, checkpoints_kept=1)
    there = run(tmp_path / "there", shards, updates=12, checkpoint_every=20, checkpoints_kept=1)
    assert here.state == there.state and here.state.rows[-1]["valid_loss"] is not None


def test_a_longer_run_that_was_shortened_and_killed_goes_on_where_it_was(tmp_path: Path, shards: Path) -> None:
    run(tmp_path, shards, updates=20, checkpoint_every=2, checkpoints_kept=2)
    with pytest.raises(Stopped):
        run(tmp_path, shards, stopping_after(5), updates=8, checkpoint_every=2, checkpoints_kept=2)
    checkpoint = resumable(tmp_path, trainer(updates=8, checkpoint_every=2, checkpoints_kept=2).config)
    assert checkpoint is not None and checkpoint.step == 5
    assert run(tmp_path, shards, updates=20, checkpoint_every=2, checkpoints_kept=2).state.step == 20


@pytest.mark.parametrize(("name", "how"), [(WEIGHTS, "flipped"), (OPTIMIZER, "cut"), (STATE, "flipped"), (OPTIMIZER, "gone")])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, shards: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    changes = dict(updates=8, checkpoint_every=2, checkpoints_kept=3)
    with pytest.raises(Stopped):
        run(tmp_path / "here", shards, stopping_after(6), **changes)
    path = tmp_path / "here" / "step-00000006" / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(
            content[: len(content) // 2]
            + (b"" if how == "cut" else bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :])
        )
    checkpoint = resumable(tmp_path / "here", trainer(**changes).config)
    assert checkpoint is not None and checkpoint.step == 4
    assert str(path) in caplog.text
    here, there = run(tmp_path / "here", shards, **changes), run(tmp_path / "there", shards, **changes)
    assert_equal_ends(tmp_path / "here", here, tmp_path / "there", there)


def test_a_damaged_checkpoint_that_is_to_be_kept_is_trained_again(tmp_path: Path, shards: Path) -> None:
    changes = dict(updates=8, checkpoint_every=2, checkpoints_kept=3)
    there = run(tmp_path / "there", shards, **changes)
    run(tmp_path / "here", shards, **changes)
    (tmp_path / "here" / "step-00000004" / WEIGHTS).write_bytes(b"")
    assert_equal_ends(tmp_path / "here", run(tmp_path / "here", shards, **changes), tmp_path / "there", there)


def test_with_every_checkpoint_damaged_the_run_begins_anew(tmp_path: Path, shards: Path) -> None:
    there = run(tmp_path / "there", shards)
    run(tmp_path / "here", shards)
    for path in checkpoints(tmp_path / "here"):
        (path / STATE).unlink()
    assert resumable(tmp_path / "here", there.config) is None
    assert_equal_ends(tmp_path / "here", run(tmp_path / "here", shards), tmp_path / "there", there)


def test_there_is_nothing_to_resume_in_an_empty_or_missing_folder(tmp_path: Path) -> None:
    config = trainer().config
    assert resumable(tmp_path, config) is None and resumable(tmp_path / "gone", config) is None


def test_the_seed_alone_decides_the_start(shards: Path) -> None:
    one, again, two = trainer(seed=1), trainer(seed=1), trainer(seed=2)
    assert equal(one.model.state_dict(), again.model.state_dict())
    assert not torch.equal(one.model.embedding.weight, two.model.embedding.weight)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_one_piece_and_four_pieces_give_the_same_gradients_to_rounding(shards: Path, precision: str) -> None:
    found = []
    for microbatches in (1, 4, 8):
        one = trainer(model={**MODEL, "dropout": 0.0}, microbatches=microbatches, precision=precision)
        if precision == "float32":
            one.model.double()
        [update] = first_updates(shards, 1, one)
        assert len(update.pieces) == microbatches
        found.append((one.update(update), gradients(one)))
    tolerance = 1e-12 if precision == "float32" else 0.05
    (sums, first), *others = found
    for other_sums, other in others:
        assert other_sums["tokens"] == sums["tokens"]
        assert other_sums["loss"] == pytest.approx(sums["loss"], rel=max(tolerance, 1e-6))
        assert all((first[name] - other[name]).norm() <= tolerance * first[name].norm() + tolerance * 1e-3 for name in first)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
@pytest.mark.filterwarnings("ignore")  # torch.compile warns itself, and silences that
def test_compiled_layers_give_the_same_gradients_to_rounding() -> None:
    """Dropout included, for shapes that were not there when the layers were compiled."""
    shapes = [(6, 6), (12, 14), (30, 40)]  # pairs, and tokens of the longest
    found: dict[bool, list[dict[str, Tensor]]] = {True: [], False: []}
    for compiled, each in found.items():
        one = Trainer(TrainConfig(**TRAIN), ModelConfig(**{**MODEL, "layers": 2}), VOCAB, 1, torch.device("cpu"), compiled=compiled)
        start = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
        for pairs, longest in shapes:
            one.update(one_update([collate(copies(pairs, 5, longest))] * 2))
            one.model.load_state_dict(start)
            each.append(gradients(one))
    for eager, compiled_ones in zip(found[False], found[True], strict=True):
        assert all((eager[name] - compiled_ones[name]).norm() <= 1e-5 * eager[name].norm() + 1e-7 for name in eager)


def test_the_gradient_is_that_of_the_mean_over_all_target_tokens(shards: Path) -> None:
    """Pieces of very different length: a mean of means would differ."""
    one = trainer(model={**MODEL, "dropout": 0.0}, label_smoothing=0.1)
    one.model.double()
    short, long = [([FIRST], [FIRST])], [([FIRST + 1] * 5, [FIRST + 2] * 9)] * 3
    update = one_update([collate(short), collate(long)])
    sums = one.update(update)
    mine = gradients(one)
    other = trainer(model={**MODEL, "dropout": 0.0})
    other.model.double()
    batch = collate(short + long)
    logits = other.model.logits(other.model(batch.src, batch.tgt_in)).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, batch.tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1)
    loss.backward()
    assert sums["tokens"] == 2 + 3 * 10 and sums["loss"] / sums["tokens"] == pytest.approx(loss.item(), rel=1e-9)
    assert all(torch.allclose(mine[name], gradient, rtol=1e-9, atol=1e-12) for name, gradient in gradients(other).items())
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in mine.values()))
    assert sums["gradient_norm"] == pytest.approx(norm, rel=1e-9)


def test_an_update_is_the_adam_step_of_the_paper(shards: Path) -> None:
    one = trainer()
    for update in first_updates(shards, 3, one):
        before = {name: parameter.detach().clone() for name, parameter in one.model.named_parameters()}
        moments = {p: {k: v.clone() for k, v in s.items()} for p, s in one.optimizer.state.items()}
        one.update(update)
        step = one.state.step
        rate = 16**-0.5 * min(step**-0.5, step * 20**-1.5)
        for name, parameter in one.model.named_parameters():
            assert parameter.grad is not None
            old = moments.get(parameter, {"exp_avg": torch.tensor(0.0), "exp_avg_sq": torch.tensor(0.0)})
            mean = 0.9 * old["exp_avg"] + 0.1 * parameter.grad
            square = 0.98 * old["exp_avg_sq"] + 0.02 * parameter.grad**2
            expected = before[name] - rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.98**step)).sqrt() + 1e-9)
            assert torch.allclose(parameter, expected, rtol=1e-4, atol=1e-6), name


def test_dropout_depends_on_seed_update_and_piece_and_on_nothing_else(shards: Path) -> None:
    batch = collate(copies(6, 5))

    def gradient(seed: int = 1, step: int = 1, pieces: int = 1, before: int = 0) -> dict[str, Tensor]:
        one = trainer(seed=seed)
        one.model.load_state_dict(trainer(seed=1).model.state_dict())
        torch.rand(before)  # what others drew from torch's own generator
        one.state.step = step - 1
        one.update(one_update([batch] * pieces))
        return gradients(one)

    assert equal(gradient(), gradient()) and equal(gradient(), gradient(before=7))
    for other in (dict(seed=2), dict(step=2), dict(pieces=2)):
        assert not torch.allclose(gradient()["embedding.weight"], gradient(**other)["embedding.weight"], rtol=1e-3), other


def test_without_dropout_the_pieces_of_equal_content_have_equal_gradients(shards: Path) -> None:
    """The other half of the test above: there it was dropout that made the difference."""
    batch = collate(copies(6, 5))
    found = []
    for pieces in (1, 2):
        one = trainer(model={**MODEL, "dropout": 0.0})
        one.update(one_update([batch] * pieces))
        found.append(gradients(one)["embedding.weight"])
    assert torch.allclose(*found, rtol=1e-4, atol=1e-7)


def test_the_largest_shape_is_tried_before_the_first_update_and_leaves_no_trace(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(tmp_path / "plain", shards)
    sizes: list[int] = []
    sums = nmt.training.batch_sums

    def watched(model: Transformer, batch: Batch, *rest: Any) -> tuple[Tensor, Tensor]:
        sizes.append(batch.src.numel() + batch.tgt_out.numel())
        return sums(model, batch, *rest)

    monkeypatch.setattr(nmt.training, "batch_sums", watched)
    one = run(tmp_path / "watched", shards)
    assert sizes[0] == max(sizes) and len(sizes) > 2 * len(one.state.rows)
    assert equal(one.model.state_dict(), expected.model.state_dict())


def test_too_little_memory_shows_before_the_first_update(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> tuple[Tensor, Tensor]:
        raise MemoryError

    monkeypatch.setattr(nmt.training, "batch_sums", none_left)
    one = trainer()
    with pytest.raises(MemoryError):
        train(one, shards, tmp_path)
    assert one.state.step == 0 and not list(tmp_path.iterdir())


def test_an_update_without_finite_gradient_is_counted_and_changes_nothing(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(shards, monkeypatch, range(2, 3))
    one = trainer()
    first, second, third = first_updates(shards, 3, one)
    one.update(first)
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    sums = one.update(second)
    assert math.isnan(sums["loss"]) and sums["tokens"] > 0
    assert equal(one.model.state_dict(), before)
    assert (one.state.step, one.state.skipped, one.state.skipped_in_a_row) == (2, 1, 1)
    one.update(third)
    assert not torch.equal(one.model.embedding.weight, before["embedding.weight"])
    assert (one.state.step, one.state.skipped, one.state.skipped_in_a_row) == (3, 1, 0)


@pytest.mark.parametrize("broken", [range(1, 4), range(4, 8)], ids=str)
def test_skipped_updates_survive_a_stop_at_any_moment(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch, broken: range) -> None:
    poison(shards, monkeypatch, broken)
    whole = run(tmp_path / "whole", shards)
    assert whole.state.skipped == len(broken)
    assert [row["skipped"] for row in whole.state.rows] == [sum(n <= row["update"] for n in broken) for row in whole.state.rows]
    for k in (1, 3, 4, 5):
        with pytest.raises(Stopped):
            run(tmp_path / str(k), shards, stopping_after(k))
        assert_equal_ends(tmp_path / str(k), run(tmp_path / str(k), shards), tmp_path / "whole", whole)


def test_the_table_says_nothing_of_an_interval_in_which_nothing_was_applied(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(shards, monkeypatch, range(3, 5))
    rows = run(tmp_path, shards).state.rows
    assert [row["update"] for row in rows if row["loss"] is None and row["perplexity"] is None and row["gradient_norm"] is None] == [3, 4]
    assert all(math.isfinite(value) for row in rows for value in row.values() if value is not None)


def test_a_run_that_stays_broken_stops_with_the_last_good_checkpoint_and_says_where(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = run(tmp_path / "good", shards, updates=4, checkpoint_every=4, checkpoints_kept=1)
    poison(shards, monkeypatch, range(5, 100))
    changes = dict(updates=40, checkpoint_every=4, checkpoints_kept=2)
    last = 4 + SKIPPED_IN_A_ROW
    for _ in range(2):  # a second try ends at the same place
        with pytest.raises(
            UserError, match=rf"^training diverged: the gradients of 10 updates up to {last} were not finite \(.*0:\d+, .*\); raise"
        ):
            run(tmp_path / "here", shards, **changes)
    newest = open_checkpoint(checkpoints(tmp_path / "here")[-1])
    assert all(torch.equal(tensor, good.model.state_dict()[name]) for name, tensor in newest.weights().items())


def test_weights_that_become_nan_stop_the_run_and_do_not_replace_good_ones(tmp_path: Path, shards: Path) -> None:
    for checkpoint_every, message in (
        (2, "step-00000004: the training diverged"),
        (20, "training diverged: the gradients of 10 updates up to 13"),
    ):
        folder = tmp_path / str(checkpoint_every)
        one = trainer(updates=40, checkpoint_every=checkpoint_every, checkpoints_kept=1)

        def destroy(state: Any, update: Update, one: Trainer = one) -> None:
            if state.step == 3:
                with torch.no_grad():
                    one.model.embedding.weight[FIRST, 0] = math.nan

        with pytest.raises(UserError, match=message):
            train(one, shards, folder, report=destroy)
        assert steps(folder) == ([2] if checkpoint_every == 2 else [])
        for path in checkpoints(folder):
            assert all(tensor.isfinite().all() for tensor in open_checkpoint(path).weights().values())


def test_bfloat16_trains_and_keeps_weights_and_moments_in_float32(tmp_path: Path, shards: Path) -> None:
    one = run(tmp_path, shards, precision="bfloat16")
    assert one.state.skipped == 0 and all(math.isfinite(row["loss"]) for row in one.state.rows)
    checkpoint = open_checkpoint(checkpoints(tmp_path)[-1])
    tensors = [*checkpoint.weights().values(), *checkpoint.moments().values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32} and all(tensor.isfinite().all() for tensor in tensors)
    exact = run(tmp_path / "float32", shards)
    differences = [abs(a["loss"] - b["loss"]) for a, b in zip(one.state.rows, exact.state.rows, strict=True)]
    assert 0 < max(differences) < 0.1


def test_the_table_is_what_was_seen(tmp_path: Path, shards: Path) -> None:
    one = run(tmp_path, shards, updates=60, checkpoint_every=20, checkpoints_kept=1)
    rows = one.state.rows
    assert [row["update"] for row in rows] == list(range(2, 61, 2))
    for row in rows:
        step = row["update"]
        assert row["learning_rate"] == pytest.approx(
            16**-0.5 * min(step**-0.5, step * 20**-1.5), rel=1e-12
        )  # eq. 3 with d_model 16, warmup 20
        assert (row["valid_loss"] is None) == (step % 20 != 0)
    seen = [sum(int((piece.tgt_out != PAD).sum()) for piece in update.pieces.values()) for update in first_updates(shards, 60, one)]
    assert [row["tokens"] for row in rows] == [sum(seen[: row["update"]]) for row in rows]


def test_loss_and_perplexity_are_means_over_the_tokens_since_the_last_row(tmp_path: Path, shards: Path) -> None:
    changes = dict(updates=40, checkpoint_every=40, checkpoints_kept=1)  # a row every 4 updates
    one = run(tmp_path, shards, **changes)
    other = trainer(**changes)
    sums = [other.update(update) for update in first_updates(shards, 40, other)]
    for number, row in enumerate(one.state.rows):
        part = sums[4 * number : 4 * number + 4]
        tokens = sum(s["tokens"] for s in part)
        assert row["loss"] == pytest.approx(sum(s["loss"] for s in part) / tokens, rel=1e-9)
        assert row["perplexity"] == pytest.approx(math.exp(sum(s["nll"] for s in part) / tokens), rel=1e-9)
        assert row["gradient_norm"] == part[-1]["gradient_norm"]


def test_the_valid_loss_is_torchs_cross_entropy_of_the_weights_saved_there(tmp_path: Path, shards: Path) -> None:
    one = run(tmp_path, shards)
    for step in (6, 8):
        other = trainer()
        other.resume(open_checkpoint(tmp_path / f"step-{step:08}"))
        other.model.eval()
        batch = collate(copies(40, 2))
        with torch.no_grad():
            logits = other.model.logits(other.model(batch.src, batch.tgt_in)).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits.double(), batch.tgt_out.flatten(), ignore_index=PAD).item()
        [row] = [row for row in one.state.rows if row["update"] == step]
        assert row["valid_loss"] == pytest.approx(expected, rel=1e-5)
        assert row["valid_perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def config(**changes: Any) -> TrainConfig:
    return parse(TrainConfig, {**TRAIN, **changes}, "variants.toy.train")


@pytest.mark.parametrize(
    ("changes", "kept_steps"),
    [
        (dict(updates=8, checkpoint_every=2, checkpoints_kept=3), [4, 6, 8]),
        (dict(updates=8, checkpoint_every=2, checkpoints_kept=4), [2, 4, 6, 8]),
        (dict(updates=15, checkpoint_every=10, checkpoints_kept=2), [10, 15]),
        (dict(updates=16, checkpoint_every=10, checkpoints_kept=1), [16]),
        (dict(updates=3, checkpoint_every=10, checkpoints_kept=1), [3]),
        (dict(updates=10, checkpoint_every=10, checkpoints_kept=1), [10]),
    ],
)
def test_the_steps_that_are_left_behind(changes: dict[str, int], kept_steps: list[int]) -> None:
    found = config(**changes)
    assert found.kept_steps(found.updates) == kept_steps
    every = changes["checkpoint_every"]
    assert [s for s in range(1, found.updates + 1) if found.is_scheduled(s)] == sorted(
        {*range(every, found.updates + 1, every), found.updates}
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(updates=14, checkpoint_every=10),
            r"the last checkpoint, at updates \(14\), would be only 4 updates behind the one before it",
        ),
        (dict(updates=21, checkpoint_every=10), r"only 1 updates behind .*: make updates a multiple of checkpoint_every \(10\)"),
        (dict(updates=8, checkpoint_every=2, checkpoints_kept=5), "checkpoints_kept is 5, but the run writes only 4$"),
        (dict(updates=3, checkpoint_every=10, checkpoints_kept=2), "checkpoints_kept is 2, but the run writes only 1$"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=f"^variants.toy.train cannot be so: .*{message}"):
        config(**changes)


@pytest.mark.parametrize("name", ["updates", "tokens_per_update", "microbatches", "warmup_updates", "checkpoint_every", "checkpoints_kept"])
def test_counts_begin_at_one(name: str) -> None:
    with pytest.raises(UserError, match=rf"^variants\.toy\.train\.{name} is 0: it must be at least 1"):
        config(**{name: 0})


def test_the_vocabulary_of_the_tests_is_used_up() -> None:
    """The copy task above measures something: every token occurs."""
    assert {token for pair in copies(300, 1) for token in pair[0]} == set(range(FIRST, VOCAB))


def rows(*valid_losses: float | None) -> list[Row]:
    """Rows of a training table, one each 5 updates, with these valid losses."""
    return [{"update": 5 * number, "valid_loss": loss} for number, loss in enumerate(valid_losses, 1)]


@pytest.mark.parametrize(
    ("patience", "losses", "end"),
    [
        (None, (3.0, 4.0, 5.0, 6.0), 100),
        (1, (3.0, 2.0), 100),
        (1, (3.0, 3.0), 10),  # equal is no better
        (2, (3.0, 4.0, 2.9, 4.0), 100),
        (2, (3.0, 4.0, 3.5), 15),
        (2, (3.0, None, 4.0, None, 3.5, 1.0), 25),  # rows between checkpoints do not count; nor does what came after the end
        (30, (3.0,) * 31, 100),  # would be 155
    ],
)
def test_where_patience_runs_out(patience: int | None, losses: tuple[float | None, ...], end: int) -> None:
    found = config(updates=100, checkpoint_every=5, checkpoints_kept=1, patience=patience)
    assert found.end(rows(*losses)) == end


def test_more_checkpoints_than_patience_is_sure_to_leave_are_refused() -> None:
    assert config(updates=8, checkpoint_every=2, checkpoints_kept=3, patience=2)
    with pytest.raises(
        UserError, match="checkpoints_kept is 3, but with a patience of 1 the run may end after 2 checkpoints: raise patience to 2"
    ):
        config(updates=8, checkpoint_every=2, checkpoints_kept=3, patience=1)


@pytest.mark.parametrize("stop", [3, 6, 7, 8])
def test_a_run_whose_patience_ran_out_is_one_that_was_planned_to_end_there(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    losses = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.25, 10: 1.0, 12: 0.5}

    def run_with(name: str, stop: Callable[[], bool] = lambda: False, **changes: Any) -> Trainer:
        one = trainer(checkpoint_every=2, checkpoints_kept=3, **changes)
        monkeypatch.setattr(nmt.training, "held_out_loss", lambda *_: HeldOutLoss(losses[one.state.step], 1))
        checkpoint = resumable(tmp_path / name, one.config)
        if checkpoint:
            one.resume(checkpoint)
        train(one, shards, tmp_path / name, stop)
        return one

    planned = run_with("planned", updates=8)
    if stop < 8:
        with pytest.raises(Stopped):
            run_with("patient", stopping_after(stop), updates=12, patience=2)
    patient = run_with("patient", updates=12, patience=2)
    assert patient.state == planned.state and patient.state.step == 8
    for step in planned.config.kept_steps(8):
        folders = [tmp_path / name / f"step-{step:08}" for name in ("planned", "patient")]
        assert (folders[0] / WEIGHTS).read_bytes() == (folders[1] / WEIGHTS).read_bytes()
    assert run_with("patient", updates=12, patience=2).state.step == 8  # once more: nothing to do
    assert run_with("patient", updates=12, patience=3).state.step == 12  # with more of it the run goes on
    assert steps(tmp_path / "patient")[-1] == 12
    less = run_with("patient", updates=12, patience=2)  # with less again it ends where it did
    assert less.state == planned.state
