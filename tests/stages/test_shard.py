"""The stage `shard`: every line becomes the ids of its own pieces, in order."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from ruamel.yaml import YAML

from nmt import encoding, resampling
from nmt.errors import UserError
from nmt.shards import read_pairs, read_shard, shard_files, write_lists
from nmt.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from stages import shard
from tests.copy_task import HARDWARE, PROJECT, run
from tests.shards import write_shards

TRAIN = [(f"the house {n} is  old\u2028and red", f"das Haus {n} ist alt\u0085und rot") for n in range(25)]
VALID = [("a new house", "ein neues Haus"), ("", "leer"), ("\u65b0\u3057\u3044 🏠", ""), (" spaces  kept ", "\u00a0")]
PATHS = [Path(name) for name in ("clean", "raw", "tokenizer.model", "shards", "statistics.json")]


def write_params(workers: int, sampling: dict[str, float] | None = None, kind: str = "bpe") -> None:
    toy = {"languages": {"src": "en", "tgt": "de"}, "subword_sampling": sampling, "tokenizer": {"type": kind}}
    YAML(typ="safe", pure=True).dump({"corpora": {"toy": toy}, "hardware": HARDWARE | {"workers": workers}}, Path("params.yaml"))


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_params(1)
    for folder, name, pairs in (("clean", "train", TRAIN), ("raw", "valid", VALID)):
        Path(folder).mkdir()
        for side, language in enumerate(("en", "de")):
            Path(folder, f"{name}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    config = TokenizerConfig(type="bpe", vocab_size=320, normalization="identity", sample_lines=1000)
    Path("tokenizer.model").write_bytes(train_tokenizer([line for pair in TRAIN for line in pair], config, "corpora.toy.tokenizer"))
    return tmp_path


def test_the_ids_of_each_line_are_those_of_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "CHUNK", 7)  # several chunks, the last one short
    shard.main("corpora.toy", *PATHS)
    tokenizer = Tokenizer.load(Path("tokenizer.model"))
    for name, pairs in (("train", TRAIN), ("valid", VALID)):
        found = [(src.tolist(), tgt.tolist()) for src, tgt in read_pairs(Path("shards", name))]
        assert found == [tuple(tokenizer.encode(list(pair))) for pair in pairs]
        assert [(tokenizer.decode(src), tokenizer.decode(tgt)) for src, tgt in found] == pairs
        first = read_shard(shard_files(Path("shards", name))[0])
        assert (first.vocab_size, first.tokenizer_sha256) == (320, tokenizer.sha256)


def outputs() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (*Path("shards").rglob("*.arrow"), Path("statistics.json"))}


@pytest.mark.parametrize("size", [500_000, 6])
def test_the_bytes_repeat_whatever_the_chunk(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", size)
    found = []
    for chunk in (1, 4, 10_000):
        monkeypatch.setattr(shard, "CHUNK", chunk)
        shard.main("corpora.toy", *PATHS)
        found.append(outputs())
    assert found[0] == found[1] == found[2] and len(found[0]) == (3 if size > 25 else 7)
    assert list(Path(".scratch/shard").iterdir()) == []


def test_one_shard_is_the_file_that_the_plain_writer_writes() -> None:
    shard.main("corpora.toy", *PATHS)
    pieces = Tokenizer.load(Path("tokenizer.model"))
    write_shards((tuple(pieces.encode(list(pair))) for pair in TRAIN), Path("plain"), pieces.vocab_size, pieces.sha256)
    assert Path("plain/00000.arrow").read_bytes() == Path("shards/train/00000.arrow").read_bytes()


def test_several_shards_share_the_pairs_evenly_and_each_keeps_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 6)
    monkeypatch.setattr(shard, "CHUNK", 4)
    shard.main("corpora.toy", *PATHS)
    pieces = Tokenizer.load(Path("tokenizer.model"))
    numbers = []
    for file in shard_files(Path("shards/train")):
        found = read_shard(file)
        pairs = [(pieces.decode(found.src[row].tolist()), pieces.decode(found.tgt[row].tolist())) for row in range(len(found))]
        numbers.append([TRAIN.index(pair) for pair in pairs])
    assert all(mine == sorted(mine) and len(mine) == 5 for mine in numbers)
    assert sorted(sum(numbers, [])) == list(range(25)) and numbers[0] != list(range(5)) and numbers[0] != list(range(0, 25, 5))


@pytest.mark.slow
def test_1_2_and_7_workers_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 13)
    monkeypatch.setattr(shard, "CHUNK", 4)
    found = []
    for workers in (1, 2, 7):
        write_params(workers)
        shard.main("corpora.toy", *PATHS)
        found.append(outputs())
    assert found[0] == found[1] == found[2] and len(found[0]) == 4


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_each_epoch_has_the_same_text_in_other_pieces(kind: Literal["bpe", "unigram"], monkeypatch: pytest.MonkeyPatch) -> None:
    config = TokenizerConfig(type=kind, vocab_size=300, normalization="identity", sample_lines=1000)
    text = [line for pair in TRAIN for line in pair] + [f"{a}{b}" for a in ("ver", "be", "ent") for b in ("laufen", "stehen", "lassen")] * 5
    Path("tokenizer.model").write_bytes(train_tokenizer(text, config, "corpora.toy.tokenizer"))
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 13)
    shard.main("corpora.toy", *PATHS)
    plain = outputs()
    write_params(1, {"alpha": 0.3, "epochs": 3}, kind)
    shard.main("corpora.toy", *PATHS)
    found = outputs()
    assert {name: found[name] for name in plain if name.endswith(".arrow")} == {n: plain[n] for n in plain if n.endswith(".arrow")}
    tokenizer = Tokenizer.load(Path("tokenizer.model"))
    folders = [Path("shards/train"), *(Path(f"shards/train/sampled-00{epoch}") for epoch in range(3))]
    pieces = [[side.tolist() for pair in read_pairs(folder) for side in pair] for folder in folders]
    decoded = [[tokenizer.decode(ids) for ids in sentences] for sentences in pieces]
    assert decoded[0] == decoded[1] == decoded[2] == decoded[3]
    assert len({str(sentences) for sentences in pieces}) == 4
    shares = json.loads(found["statistics.json"])["train"]["sampled"]
    counts = [sum(len(ids) for sentences in epochs for ids in sentences[side::2]) for epochs in (pieces[:1], pieces[1:]) for side in (0, 1)]
    assert shares == {"epochs": 3, "src": round(counts[2] / counts[0] / 3, 4), "tgt": round(counts[3] / counts[1] / 3, 4)}


def test_pieces_drawn_for_an_epoch_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 13)
    monkeypatch.setattr(resampling, "BLOCK", 5)
    write_params(1, {"alpha": 0.3, "epochs": 2})
    found = []
    for chunk in (1, 4, 10_000):
        monkeypatch.setattr(shard, "CHUNK", chunk)
        shard.main("corpora.toy", *PATHS)
        found.append(outputs())
    assert found[0] == found[1] == found[2] and len(found[0]) == 8


def test_what_was_drawn_before_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 13)
    write_params(1, {"alpha": 0.3, "epochs": 2})
    shard.main("corpora.toy", *PATHS)
    undisturbed = outputs()
    written: list[Path] = []

    def write(path: Path, *rest: Any) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_lists(path, *rest)

    shutil.rmtree("shards")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(resampling, "write_lists", write)
        shard.main("corpora.toy", *PATHS)
    assert not Path("shards").exists()
    later: list[Path] = []
    monkeypatch.setattr(resampling, "write_lists", lambda path, *rest: (later.append(path), write_lists(path, *rest)))
    shard.main("corpora.toy", *PATHS)
    assert (len(written), len(later)) == (3, 1) and outputs() == undisturbed


@pytest.mark.slow
def test_processes_draw_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PAIRS_PER_SHARD", 13)
    found = []
    for workers in (1, 3):
        write_params(workers, {"alpha": 0.3, "epochs": 2})
        shard.main("corpora.toy", *PATHS)
        found.append(outputs())
    assert found[0] == found[1]


def test_what_the_text_is_made_of_is_counted() -> None:
    shard.main("corpora.toy", *PATHS)
    found = json.loads(Path("statistics.json").read_text())
    assert found["train"]["pairs"] == 25 and found["valid"]["pairs"] == 4
    pieces = Tokenizer.load(Path("tokenizer.model"))
    for name, pairs in (("train", TRAIN), ("valid", VALID)):
        for side, key in enumerate(("src", "tgt")):
            lines = [pair[side] for pair in pairs]
            ids = pieces.encode(lines)
            mine = found[name][key]
            assert mine["words"] == sum(len(line.split()) for line in lines) and mine["characters"] == sum(map(len, lines))
            assert mine["pieces"] == sum(map(len, ids)) and mine["longest"] == max(map(len, ids))
            assert mine["pieces_per_word"] == pytest.approx(mine["pieces"] / mine["words"], abs=1e-4)
            assert mine["vocabulary_used"] == len({piece for line in ids for piece in line})
            names = [name for line in ids for name in pieces.pieces(line)]
            assert mine["byte_pieces"] == sum(re.fullmatch("<0x..>", name) is not None for name in names)
            assert sum(mine["lengths"]) == len(lines) and mine["lengths"][0] == sum(len(line) < 10 for line in ids)
            assert (mine["checked"], mine["altered"]) == (1, 0)


def test_lines_that_normalization_alters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checked lines; here all are. nfkc makes one character of the ligature and three points of the ellipsis."""
    monkeypatch.setattr(encoding, "CHECKED", 1)
    config = TokenizerConfig(type="bpe", vocab_size=300, normalization="nfkc", sample_lines=1000)
    Path("tokenizer.model").write_bytes(train_tokenizer([line for pair in TRAIN for line in pair], config, "corpora.toy.tokenizer"))
    for language, lines in (("en", ["plain", "ﬁne", "more …", "ＡＢ", "last"]), ("de", ["eins"] * 5)):
        Path(f"clean/train.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    shard.main("corpora.toy", *PATHS)
    found = json.loads(Path("statistics.json").read_text())["train"]
    assert (found["src"]["checked"], found["src"]["altered"], found["tgt"]["altered"]) == (5, 3, 0)


def test_combining_characters_and_text_without_spaces_are_kept_as_they_are() -> None:
    lines = ["e\u0301", "\u00e9", "\u304b\u3099", "\u304c", "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c\u3002", "A\u030a \u212b \u00c5"]
    for language in ("en", "de"):
        Path(f"clean/train.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    shard.main("corpora.toy", *PATHS)
    pieces = Tokenizer.load(Path("tokenizer.model"))
    assert [pieces.decode(src.tolist()) for src, _ in read_pairs(Path("shards/train"))] == lines


@pytest.mark.slow
def test_killed_at_any_chunk_the_next_run_keeps_what_was_finished_and_ends_with_the_same_bytes() -> None:
    write_params(2)
    program = f"from pathlib import Path, PosixPath; from stages import shard; shard.CHUNK = 1; shard.main('corpora.toy', *{PATHS})"
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    subprocess.run(command, check=True, env=environment)
    whole = outputs()
    shutil.rmtree("shards")
    Path("statistics.json").unlink()
    with subprocess.Popen(command, env=environment) as process:
        while len(chunks := {path: path.stat().st_ino for path in Path(".scratch/shard").glob("*/[0-9]*[0-9]")}) < 5:
            assert process.poll() is None, "it ended before it was killed"
        process.kill()
    assert not Path("shards").exists() and not Path("statistics.json").exists()
    with subprocess.Popen(command, env=environment) as process:
        while len(more := {path: path.stat().st_ino for path in Path(".scratch/shard").glob("*/[0-9]*[0-9]")}) < len(chunks) + 1:
            assert process.poll() is None, "it ended without going on"
        process.kill()
    assert chunks.items() <= more.items(), "a finished chunk was made again"
    subprocess.run(command, check=True, env=environment)
    assert outputs() == whole and list(Path(".scratch/shard").iterdir()) == []


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
