"""What a long command tells where nobody rewrites a line."""

import time

import pytest

from pipelines.telling import telling


def test_in_a_log_there_is_a_line_every_ten_seconds_at_most(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with telling("compare") as tell:
        for second in range(0, 35):
            now[0] = float(second)
            tell(f"[b]at {second}")
    assert capsys.readouterr().err == "compare: [b]at 10\ncompare: [b]at 20\ncompare: [b]at 30\n"
