"""nmt.progress: honest figures, one line on a terminal, few lines in a log."""

import re
import sys
import time

import pytest

from nmt.progress import Progress, clock


class Clock:
    """A monotonic clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Clock:
    watch = Clock()
    monkeypatch.setattr(time, "monotonic", watch)
    return watch


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (100_000, "27:46:40")],
)
def test_a_duration_is_shown_in_hours_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_the_line_has_share_rate_time_left_and_note(watch: Clock) -> None:
    progress = Progress("train", 2000, "updates")
    watch.now += 100
    progress.advance(400, "loss 3.214")
    assert progress.line() == "train: 400/2,000 updates (20 %), 4 updates/s, 6:40 left, loss 3.214"
    watch.now += 10
    progress.advance(1600)
    assert progress.line() == "train: 2,000/2,000 updates (100 %), 18 updates/s, loss 3.214"


def test_resumed_work_has_the_rate_of_its_own_time(watch: Clock) -> None:
    progress = Progress("train", 2000, "updates", done=1900)
    assert progress.line() == "train: 1,900/2,000 updates (95 %), 0 updates/s"
    watch.now += 10
    progress.advance(50)
    assert progress.line() == "train: 1,950/2,000 updates (97 %), 5 updates/s, 0:10 left"


def test_of_unequal_units_the_time_left_is_that_of_the_work_left(watch: Clock) -> None:
    progress = Progress("translate", 100, "lines", work=1000.0)
    watch.now += 10
    progress.advance_by(5, 500.0)  # few lines, but half of the work
    assert progress.line() == "translate: 5/100 lines (5 %), 0.5 lines/s, 0:10 left"
    progress.skip(45, 250.0)  # done before: a quarter is left, which takes half as long as what was done
    assert progress.line() == "translate: 50/100 lines (50 %), 0.5 lines/s, 0:05 left"
    watch.now += 5
    progress.advance_by(50, 250.0)
    assert progress.line() == "translate: 100/100 lines (100 %), 3.7 lines/s"


def test_work_of_unknown_size_has_a_count_and_a_rate(watch: Clock) -> None:
    progress = Progress("read", None, "lines")
    watch.now += 4
    progress.advance(10_000)
    assert progress.line() == "read: 10,000 lines, 2,500 lines/s"


@pytest.mark.parametrize("total", [0, 1, None])
def test_no_work_and_no_time_are_no_error(watch: Clock, total: int | None) -> None:
    progress = Progress("train", total, "updates")
    assert progress.line()
    progress.advance(0)
    assert progress.line()


def test_a_log_gets_a_line_every_ten_seconds_and_a_last_one(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train", 100, "updates") as progress:
        for _ in range(100):
            watch.now += 0.25
            progress.advance()
    lines = capsys.readouterr().err.split("\n")
    assert [line.split(" ")[1] for line in lines[:-1]] == ["40/100", "80/100", "100/100"] and lines[-1] == ""
    assert lines[-2].endswith(", 0:25 in all") and not any("\r" in line or "\x1b" in line for line in lines)


def test_a_terminal_gets_one_line_that_is_rewritten(
    watch: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("train", 100, "updates") as progress:
        for _ in range(100):
            watch.now += 0.125
            progress.advance()
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.endswith("\x1b[K\n")
    shown = [int(number) for number in re.findall(r"\rtrain: (\d+)/100", text)]
    assert shown == [*range(2, 101, 2), 100]


def test_work_that_fails_says_that_it_stopped(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Progress("train", 10, "updates") as progress:
        progress.advance(3)
        raise ZeroDivisionError
    assert capsys.readouterr().err.endswith("0:00 in all (stopped)\n")
