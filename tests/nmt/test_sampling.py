import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.lines import write_lines
from nmt.sampling import RESERVED, Sampled, sample
from nmt.tokenizer import TokenizerConfig, train_tokenizer

CONFIG = TokenizerConfig(type="bpe", vocab_size=300, normalization="identity", sample_lines=10)


def write(folder: Path, **files: Iterable[str]) -> list[Path]:
    for name, lines in files.items():
        write_lines(folder / f"train.{name}", lines)
    return [folder / f"train.{name}" for name in files]


def test_a_sample_is_drawn_evenly_over_the_whole_corpus_and_keeps_its_order(tmp_path: Path) -> None:
    files = write(tmp_path, en=(f"en {number}" for number in range(6000)), de=(f"de {number}" for number in range(2000)))
    drawn = list(sample(files, 2000, Sampled()))
    places = [number + (6000 if language == "de" else 0) for language, number in ((w, int(n)) for w, n in (line.split() for line in drawn))]
    assert places == sorted(set(places))
    # Each of 8,000 lines is drawn with probability 1/4; a tenth of the corpus gives 200 with a deviation of 12.
    assert abs(len(drawn) - 2000) < 4 * 39
    for tenth in range(10):
        assert abs(sum(tenth * 800 <= place < (tenth + 1) * 800 for place in places) - 200) < 4 * 12.3
    assert list(sample(files, 2000, Sampled())) == drawn


def test_equal_lines_have_lots_of_their_own(tmp_path: Path) -> None:
    files = write(tmp_path, en=["same"] * 1000, de=["same"] * 1000)
    assert abs(len(list(sample(files, 1000, Sampled()))) - 1000) < 4 * 23


@pytest.mark.parametrize("size", [30, 31, 10**9])
def test_a_small_corpus_is_taken_whole(size: int, tmp_path: Path) -> None:
    rng = random.Random(0)
    text = {name: [str(rng.random()) for _ in range(15)] for name in ("en", "de")}
    assert list(sample(write(tmp_path, **text), size, Sampled())) == [*text["en"], *text["de"]]


def test_what_is_sampled_and_what_the_trainer_passes_over_is_counted(tmp_path: Path) -> None:
    lines = ["12345"] * 500 + [f"{RESERVED}2"] + ["1\u2028\x85\r5"] * 499
    counts = Sampled()
    assert list(sample(write(tmp_path, en=lines, de=["x"]), 10**6, counts)) == [*lines, "x"]
    assert counts == Sampled(lines=1001, sampled=1001, characters=500 * 5 + 2 + 499 * 5 + 1, skipped=1, skipped_characters=2)


def test_too_much_that_the_trainer_would_pass_over_is_an_error(tmp_path: Path) -> None:
    files = write(tmp_path, en=["a b", f"{RESERVED} c"] * 50)
    with pytest.raises(UserError, match=r"pass over 50 of 100 lines, those with the character U\+2585"):
        list(sample(files, 10**6, Sampled()))
    with pytest.raises(UserError, match="pass over 50 of 100 lines"):
        train_tokenizer(sample(files, 10**6, Sampled()), CONFIG, "corpora.demo.tokenizer")


def test_an_empty_corpus_gives_an_empty_sample(tmp_path: Path) -> None:
    assert list(sample(write(tmp_path, en=[], de=[]), 10, Sampled())) == []
