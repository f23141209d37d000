"""With a stand-in for mtdata, a package of that name, which prints what it finds in a folder, as `mtdata echo` prints a dataset."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nmt.config import parse
from nmt.errors import UserError
from nmt.mtdata import MtdataSource, dataset_pairs, fetch_datasets
from nmt.pairs import Counted

PROGRAM = """
import os, sys
assert sys.argv[1:3] == ["-no-pb", "echo"] and os.environ["MTDATA"].endswith("downloads/mtdata"), sys.argv
text = open(os.environ["SHOP"] + "/" + sys.argv[3], "rb").read()
sys.stdout.buffer.write(text)
open(os.environ["SHOP"] + "/asked", "a").write(sys.argv[3] + "\\n")
sys.exit(b"fail" in text)
"""
FIRST, SECOND = "Statmt-europarl-10-deu-eng", "OPUS-x-v1-eng-deu"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("mtdata", "shop"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mtdata/__init__.py").touch()
    (tmp_path / "mtdata/__main__.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SHOP", str(tmp_path / "shop"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "shop"


def source(sha256: str | None = None, **more: Any) -> MtdataSource:
    train = [{"id": FIRST, "src": 2, "tgt": 1, "sha256": sha256}]
    return parse(MtdataSource, {"kind": "mtdata", "sets": {"train": train, **more}}, "c.source")


def test_datasets_come_once_by_their_columns(shop: Path, tmp_path: Path) -> None:
    (shop / FIRST).write_bytes("eins\u2028\tone\nzwei\ttwo\n".encode())
    (shop / SECOND).write_bytes(b"three\tdrei\textra\n")
    wanted = source(valid=[{"id": SECOND, "src": 1, "tgt": 2, "sha256": None}])
    found = fetch_datasets(wanted, tmp_path / "downloads")
    assert {name: sha256 for name, (_, sha256) in found.items()} == {
        name: hashlib.sha256((shop / name).read_bytes()).hexdigest() for name in (FIRST, SECOND)
    }
    pairs = dataset_pairs(wanted, {name: path for name, (path, _) in found.items()}, Counted())
    assert list(pairs) == [
        ("train", FIRST, "one", "eins\u2028"),
        ("train", FIRST, "two", "zwei"),
        ("valid", SECOND, "three", "drei"),
    ]
    assert fetch_datasets(wanted, tmp_path / "downloads") == found and (shop / "asked").read_text().split() == [FIRST, SECOND]


def test_a_text_that_changed_or_did_not_come_whole_is_refused_and_not_kept(shop: Path, tmp_path: Path) -> None:
    (shop / FIRST).write_bytes(b"eins\tone\n")
    [(path, _)] = fetch_datasets(source(), tmp_path / "downloads").values()
    path.unlink()
    (shop / FIRST).write_bytes(b"eins\tOne\n")
    with pytest.raises(UserError, match=f"{FIRST} has the SHA-256 .*, refused because it is not .*of the first time; delete .*sha256"):
        fetch_datasets(source(), tmp_path / "downloads")
    with pytest.raises(UserError, match=f"refused because it is not {'0' * 64} "):
        fetch_datasets(source("0" * 64), tmp_path / "downloads")
    for text in (b"half of it\nfail", b""):
        (shop / FIRST).write_bytes(text)
        with pytest.raises(UserError, match=f"mtdata could not bring {FIRST}, for the reason above"):
            fetch_datasets(source(), tmp_path / "downloads")
    assert not path.exists() and not path.with_name(path.name + ".part").exists()


def test_without_mtdata_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.mtdata.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"a source of kind mtdata needs mtdata \(extra corpora\): pip install mtdata"):
        fetch_datasets(source(), tmp_path / "downloads")


def test_what_is_trained_on_cannot_test() -> None:
    with pytest.raises(UserError, match=f"{FIRST} is in train and in news"):
        source(news=[{"id": FIRST, "src": 2, "tgt": 1, "sha256": None}])
