"""The tokenizer on real SentencePiece models: any text in, the same text out, and the same model from the same text."""

import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import UserError
from nmt.sampling import RESERVED
from nmt.symbols import BOS, EOS, PAD, UNKNOWN
from nmt.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer

TYPES = ["bpe", "unigram"]


def config(**changed: Any) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"type": "bpe", "vocab_size": 300, "normalization": "identity", "sample_lines": 10, **changed})


def trained(lines: Iterable[str], **changed: Any) -> bytes:
    return train_tokenizer(lines, config(**changed), "corpora.demo.tokenizer")


@pytest.fixture(scope="module", params=TYPES)
def tokenizer(request: pytest.FixtureRequest, sentences: list[str]) -> Tokenizer:
    return Tokenizer(trained(sentences, type=request.param))


@pytest.mark.parametrize("kind", TYPES)
def test_the_same_text_gives_the_same_bytes(kind: str, sentences: list[str]) -> None:
    assert trained(sentences, type=kind) == trained(iter(sentences), type=kind)


@pytest.mark.slow
def test_processes_of_1_and_2_threads_train_the_same_model(sentences: list[str], tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from nmt.tokenizer import TokenizerConfig, train_tokenizer
for kind in ("bpe", "unigram"):
    config = TokenizerConfig(type=kind, vocab_size=300, normalization="identity", sample_lines=1000)
    Path(sys.argv[1] + kind).write_bytes(train_tokenizer(Path("text").read_text("utf-8").split("\\n")[:-1], config, "c"))
"""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in sentences), "utf-8")
    for threads in ("1", "2"):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        subprocess.run([sys.executable, "-c", program, threads], cwd=tmp_path, env=environment, check=True)
    for kind in TYPES:
        assert (tmp_path / f"1{kind}").read_bytes() == (tmp_path / f"2{kind}").read_bytes() == trained(sentences, type=kind)


def test_the_model_has_the_vocabulary_asked_for_and_its_special_pieces(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 300
    assert tokenizer.pieces([PAD, UNKNOWN, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_the_vocabulary_serves_both_languages(sentences: list[str]) -> None:
    """With room for all words of the text, one piece stands for each, whichever language it is of."""
    [ids] = Tokenizer(trained(sentences, vocab_size=420)).encode(["the house ist schön"])
    assert len(ids) == 4


LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40)


@given(line=LINES)
def test_any_line_comes_back_and_no_piece_is_special(tokenizer_file: Path, line: str) -> None:
    """Unseen scripts, emoji, white space of all kinds, control characters. U+2581 alone is lost: it is SentencePiece's space."""
    tokenizer = Tokenizer.load(tokenizer_file)
    [ids] = tokenizer.encode([line])
    assert tokenizer.decode(ids) == line
    assert not {PAD, UNKNOWN, BOS, EOS} & set(ids)


@pytest.mark.parametrize(
    "line", ["", "the house", " two  spaces ", "Schöne Grüße – „gut“", "😀🏳️‍🌈", "дом 中文 ᚠ", "<s> </s> <unk> <pad> <0x41>", "…ŉﬁ"]
)
def test_lines_come_back_from_either_kind_of_model(line: str, tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode([line])
    assert tokenizer.decode(ids) == line and not {PAD, UNKNOWN, BOS, EOS} & set(ids)


def test_normalization_is_the_one_asked_for(sentences: list[str]) -> None:
    def back(normalization: str) -> str:
        tokenizer = Tokenizer(trained(sentences, normalization=normalization))
        return tokenizer.decode(tokenizer.encode(["ﬁne\u00a0…"])[0])

    assert back("identity") == "ﬁne\u00a0…"
    assert back("nfkc") == "fine ..."


@pytest.mark.parametrize("kind", TYPES)
def test_a_vocabulary_too_large_for_the_text_is_an_error_that_says_how_large_it_may_be(
    kind: str, sentences: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as error:
        trained(sentences, type=kind, vocab_size=37000)
    words = str(error.value).split()
    assert words[:4] == ["corpora.demo.tokenizer.vocab_size", "is", "37000,", "but"]
    most = int(words[words.index("pieces:") - 1])
    assert str(error.value).endswith(f"lower it to {most} or less") and "INTERNAL" not in str(error.value)
    assert Tokenizer(trained(sentences, type=kind, vocab_size=most)).vocab_size == most
    with pytest.raises(UserError):
        trained(sentences, type=kind, vocab_size=most + 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", TYPES)
def test_more_characters_than_pieces_are_an_error_that_says_how_many_there_are(kind: str) -> None:
    with pytest.raises(UserError, match=r"^corpora\.demo\.tokenizer\.vocab_size is 300, but .* alone are \d+ pieces: raise it above that$"):
        trained((chr(0x4E00 + number) for number in range(500)), type=kind)


@pytest.mark.parametrize("lines", [[], [""], ["", ""]])
def test_no_text_is_an_error(lines: list[str]) -> None:
    with pytest.raises(UserError, match=r"there is no training text: cleaning kept no line$"):
        trained(lines)


@pytest.mark.parametrize("error", [UserError("train.en cannot be read"), KeyboardInterrupt(), ZeroDivisionError("ours")])
def test_what_reading_the_text_raises_is_not_taken_for_a_fault_of_the_vocabulary(error: BaseException) -> None:
    def lines() -> Iterator[str]:
        yield "a b"
        raise error

    with pytest.raises(type(error)) as raised:
        trained(lines())
    assert raised.value is error


def test_a_long_line_is_trained_on_like_any_other(capfd: pytest.CaptureFixture[str]) -> None:
    """Of 65,536 characters and more; elsewhere such lines are skipped in silence."""
    words = ["".join(pair) for pair in product("abcdefgß", repeat=2)]
    long = " ".join(random.Random(0).choices(words, k=400_000))
    tokenizer = Tokenizer(trained(["a b c", long], vocab_size=320))
    assert tokenizer.decode(tokenizer.encode([long])[0]) == long
    assert "ß" in tokenizer.pieces(range(tokenizer.vocab_size))
    assert capfd.readouterr() == ("", "")


def test_the_trainer_passes_over_lines_with_its_own_sign(sentences: list[str]) -> None:
    """What `sample` counts as skipped is so: these lines change nothing."""
    assert trained([*sentences, f"zzzz {RESERVED} zzzz"] * 2) == trained(sentences * 2)
    assert trained([*sentences, "zzzz zzzz"] * 2) != trained(sentences * 2)


def test_a_file_that_is_no_model_or_missing_is_refused_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"tokenizer\.model is missing"):
        Tokenizer.load(path)
    for content in (b"", b"no model", b"\x80\x04."):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model is not a SentencePiece model") as error:
            Tokenizer.load(path)
        assert "INTERNAL" not in str(error.value).upper()
    assert capfd.readouterr() == ("", "")
