"""The stage `shard`: every line becomes the ids of its own pieces, in order."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from nmt.shards import read_pairs, read_shard, shard_files
from nmt.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from stages import shard
from tests.copy_task import run

TRAIN = [(f"the house {n} is  old\u2028and red", f"das Haus {n} ist alt\u0085und rot") for n in range(25)]
VALID = [("a new house", "ein neues Haus"), ("", "leer"), ("\u65b0\u3057\u3044 🏠", ""), (" spaces  kept ", "\u00a0")]
PATHS = [Path(name) for name in ("clean", "raw", "tokenizer.model", "shards")]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    YAML(typ="safe", pure=True).dump({"corpora": {"toy": {"languages": {"src": "en", "tgt": "de"}}}}, Path("params.yaml"))
    for folder, name, pairs in (("clean", "train", TRAIN), ("raw", "valid", VALID)):
        Path(folder).mkdir()
        for side, language in enumerate(("en", "de")):
            Path(folder, f"{name}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    config = TokenizerConfig(type="bpe", vocab_size=320, normalization="identity", sample_lines=1000)
    Path("tokenizer.model").write_bytes(train_tokenizer([line for pair in TRAIN for line in pair], config, "corpora.toy.tokenizer"))
    return tmp_path


def test_the_ids_of_each_line_are_those_of_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "BATCH", 7)  # several batches, the last one short
    shard.main("corpora.toy", *PATHS)
    tokenizer = Tokenizer.load(Path("tokenizer.model"))
    for name, pairs in (("train", TRAIN), ("valid", VALID)):
        found = [(src.tolist(), tgt.tolist()) for src, tgt in read_pairs(Path("shards", name))]
        assert found == [tuple(tokenizer.encode(list(pair))) for pair in pairs]
        assert [(tokenizer.decode(src), tokenizer.decode(tgt)) for src, tgt in found] == pairs
        first = read_shard(shard_files(Path("shards", name))[0])
        assert (first.vocab_size, first.tokenizer_sha256) == (320, tokenizer.sha256)


def test_the_bytes_repeat_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for batch in (1, 10_000):
        monkeypatch.setattr(shard, "BATCH", batch)
        shard.main("corpora.toy", *PATHS)
        found.append({path.relative_to("shards"): path.read_bytes() for path in Path("shards").rglob("*.arrow")})
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_without_a_tokenizer_nothing_is_written(content: bytes | None, project: Path) -> None:
    path = Path("tokenizer.model")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    before = sorted(project.iterdir())
    with pytest.raises(UserError, match=r"^tokenizer\.model is (missing|not a SentencePiece model)"):
        shard.main("corpora.toy", *PATHS)
    assert sorted(project.iterdir()) == before


def test_as_a_command_it_takes_what_dvc_yaml_gives_it(project: Path) -> None:
    code, output = run(project, "stages.shard", "corpora.toy", *map(str, PATHS))
    assert code == 0, output
    assert len(list(read_pairs(Path("shards/train")))) == len(TRAIN)
    code, output = run(project, "stages.shard", "corpora.tyo", *map(str, PATHS))
    assert (code, output) == (2, "error: params.yaml: there is no corpora.tyo: did you mean toy?\n")
