"""nmt.shards: what is written is read again, by us and by others; what is not a shard is refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.shards import read_pairs, read_shard, shard_files
from tests.shards import write_shards

SHA256 = "5" * 64
PAIRS = [([812, 4, 95, 11], [77, 1204, 5]), ([9, 310], [42]), ([], [7]), ([65_535], [])]


def read(folder: Path) -> list[tuple[list[int], list[int]]]:
    return [(src.tolist(), tgt.tolist()) for src, tgt in read_pairs(folder)]


@pytest.mark.parametrize(("vocab_size", "kind"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_come_back_in_the_smallest_type_that_holds_the_vocabulary(tmp_path: Path, vocab_size: int, kind: type) -> None:
    pairs = [*PAIRS, ([vocab_size - 1], [0])]
    assert write_shards(pairs, tmp_path / "s", vocab_size, SHA256) == len(pairs)
    shard = read_shard(tmp_path / "s" / "00000.arrow")
    assert read(tmp_path / "s") == pairs
    assert shard.src.ids.dtype == shard.tgt.ids.dtype == kind
    assert (len(shard), shard.vocab_size, shard.tokenizer_sha256) == (len(pairs), vocab_size, SHA256)
    assert shard.src.lengths.tolist() == [4, 2, 0, 1, 1] and shard.tgt.lengths.tolist() == [3, 1, 1, 0, 1]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(st.integers(0, 999), max_size=5), st.lists(st.integers(0, 999), max_size=5))), st.integers(1, 4))
def test_any_pairs_come_back_in_order_however_many_go_into_a_file(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[list[int], list[int]]], size: int
) -> None:
    folder = tmp_path_factory.mktemp("pairs") / "s"
    assert write_shards(pairs, folder, 1000, SHA256, size) == len(pairs)
    files = sorted(folder.iterdir())
    assert [len(read_shard(file)) for file in files] == [len(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    assert [file.name for file in files] == [f"{number:05}.arrow" for number in range(len(files))]
    assert not pairs or read(folder) == pairs


def test_more_than_a_hundred_files_are_read_in_order(tmp_path: Path) -> None:
    pairs = [([n], [n]) for n in range(103)]
    write_shards(pairs, tmp_path / "s", 1000, SHA256, size=1)
    assert read(tmp_path / "s") == pairs


def test_pyarrow_and_pandas_open_a_shard_as_a_table(tmp_path: Path) -> None:
    write_shards(PAIRS, tmp_path / "s", 70_000, SHA256)
    path = tmp_path / "s" / "00000.arrow"
    table = pa.ipc.open_file(str(path)).read_all()
    assert table.to_pydict() == {"src": [src for src, _ in PAIRS], "tgt": [tgt for _, tgt in PAIRS]}
    assert table.schema.metadata == {b"vocab_size": b"70000", b"tokenizer_sha256": SHA256.encode()}
    frame = pd.read_feather(path)
    assert [(row.src.tolist(), row.tgt.tolist()) for row in frame.itertuples()] == PAIRS


def other_tables() -> Iterator[tuple[str, bytes]]:
    """Files that are no shards, by what they are."""
    lists = pa.array([[1]], pa.list_(pa.uint16()))
    named = {b"vocab_size": b"10", b"tokenizer_sha256": b"5"}
    tables = {
        "other columns": pa.table({"en": lists, "de": lists}).replace_schema_metadata(named),
        "columns of text": pa.table({"src": ["a"], "tgt": ["b"]}).replace_schema_metadata(named),
        "no metadata": pa.table({"src": lists, "tgt": lists}),
        "no number as vocabulary": pa.table({"src": lists, "tgt": lists}).replace_schema_metadata({**named, b"vocab_size": b"ten"}),
        "no rows": pa.table({"src": lists, "tgt": lists}).replace_schema_metadata(named).slice(0, 0),
    }
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            for batch in table.to_batches():
                if len(batch):
                    writer.write_batch(batch)
        yield name, sink.getvalue().to_pybytes()
    yield "empty", b""
    yield "text", b"one line\n" * 50


@pytest.mark.parametrize("content", [pytest.param(content, id=what) for what, content in other_tables()])
def test_a_file_that_is_no_shard_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000.arrow"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"00000\.arrow is not a shard of this project .* run the stage `shard` again"):
        read_shard(path)


def test_a_shard_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    write_shards(PAIRS, tmp_path / "s", 70_000, SHA256)
    whole = (tmp_path / "s" / "00000.arrow").read_bytes()
    for length in range(0, len(whole), 7):
        path = tmp_path / f"{length}.arrow"
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="is not a shard"):
            read_shard(path)


def test_a_missing_file_and_a_folder_without_shards_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.arrow is not a shard"):
        read_shard(tmp_path / "gone.arrow")
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(UserError, match=f"{folder} holds no shards"):
            shard_files(folder)
