from pathlib import Path

import pandas as pd
import pytest

from nmt.ledger import Ledger, Row


def write(path: Path, rows: list[Row], at_once: int) -> bytes:
    with Ledger(path) as ledger:
        for start in range(0, len(rows), at_once):
            ledger.drop(rows[start : start + at_once])
    assert ledger.count == len(rows)
    return path.read_bytes()


@pytest.mark.parametrize("count", [0, 1, 5, 6, 11])
def test_a_ledger_holds_its_rows_in_order_and_repeats_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(Ledger, "ROWS", 5)
    rows = [(f"ä{n % 2}", n + 1, 7 * n + 1, "blank" if n % 3 else "ratio") for n in range(count)]
    assert write(tmp_path / "a", rows, 1) == write(tmp_path / "b", rows, 4) == write(tmp_path / "c", rows, 100)
    table = pd.read_parquet(tmp_path / "a")
    assert list(table.columns) == ["file", "line", "train_line", "rule"] and list(table.itertuples(index=False, name=None)) == rows
