"""The command that shows the sentences of an update."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from nmt.batches import updates
from nmt.errors import UserError
from nmt.shards import read_shard, shard_files
from nmt.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from stages import inspect
from tests.copy_task import TRAIN
from tests.shards import write_shards

CONFIG = TokenizerConfig(type="bpe", vocab_size=320, normalization="identity", sample_lines=1000)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: list[str]) -> Path:
    """A folder with params.yaml, a tokenizer and the first 100 sentences beside their reverse as shards."""
    monkeypatch.chdir(tmp_path)
    content = {"seed": 1, "corpora": {"toy": {}}, "variants": {"small": {"train": {**TRAIN, "tokens_per_update": 400}}}}
    YAML(typ="safe", pure=True).dump(content, Path("params.yaml"))
    data = Path("data/toy")
    data.mkdir(parents=True)
    (data / "tokenizer.model").write_bytes(train_tokenizer(sentences, CONFIG, "corpora.toy.tokenizer"))
    tokenizer = Tokenizer.load(data / "tokenizer.model")
    lines = [f"{number} [b]{line}[/b]" for number, line in enumerate(sentences[:100])]  # as if for rich
    pairs = zip(tokenizer.encode(lines), tokenizer.encode([line[::-1] for line in lines]), strict=True)
    write_shards(pairs, data / "shards/train", tokenizer.vocab_size, tokenizer.sha256, 30)
    return tmp_path


def test_it_shows_the_pairs_of_the_update_piece_by_piece(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.main("toy", "small", update=2)
    head, *lines = capsys.readouterr().out.splitlines()
    plan = updates(Path("data/toy/shards/train"), 400, 2, seed=1)
    first, second = next(plan), next(plan)
    assert first.pairs != second.pairs
    assert head == f"update 2: {len(second.pairs)} pairs, {second.tokens} target tokens, 2 pieces"
    tokenizer, shards = Tokenizer.load(Path("data/toy/tokenizer.model")), shard_files(Path("data/toy/shards/train"))
    expected = []
    for shard, row in second.pairs:
        src = tokenizer.decode(read_shard(shards[shard]).src[row].tolist())
        expected.append(f"{shard}:{row} {src} ||| {src[::-1]}")
    assert [line for line in lines if "|||" in line] == expected
    starts = [number for number, line in enumerate(lines) if line.startswith("piece ")]
    assert [lines[start].split(",")[0] for start in starts] == [
        f"piece {piece}: {sum('|||' in line for line in part)} pairs"
        for piece, part in enumerate((lines[starts[0] : starts[1]], lines[starts[1] :]))
    ]


@pytest.mark.parametrize(
    ("corpus", "variant", "message"),
    [
        ("toi", "small", r"there is no corpora\.toi: did you mean toy\?"),
        ("toy", "smal", r"there is no variants\.smal: did you mean small\?"),
    ],
)
def test_what_does_not_exist_is_named(project: Path, corpus: str, variant: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        inspect.main(corpus, variant, update=1)


def test_before_the_shards_are_made_it_says_how_to_make_them(project: Path) -> None:
    Path("data").rename("elsewhere")
    with pytest.raises(UserError, match=r"^data/toy/shards is not there: run `dvc repro shard@toy` first$"):
        inspect.main("toy", "small", update=1)
