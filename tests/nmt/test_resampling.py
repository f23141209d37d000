"""Subword sampling against the papers' definitions: every probability by hand, every text as it was."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.resampling import Merges, Numbers, Resampler, Sampling
from nmt.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer

TEXT = ["abc abd cab bca", "ab abc abcabc", "die  Häuser der Stadt", "die Häuser; das Haus", "x y z", "ab  cab a b c"] * 3

MORE = [f"{a}{b}" for a in ("ver", "be", "ent") for b in ("laufen", "stehen", "lassen", "halten")] * 5


def trained(kind: str, size: int = 310) -> Tokenizer:
    config = TokenizerConfig.model_validate({"type": kind, "vocab_size": size, "normalization": "identity", "sample_lines": 100})
    return Tokenizer(train_tokenizer([*TEXT, *MORE], config, "corpora.toy.tokenizer"))


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return trained("bpe")


def encoded(tokenizer: Tokenizer, lines: list[str]) -> tuple[Numbers, Numbers]:
    ids = tokenizer.encode(lines)
    return np.array([i for line in ids for i in line], dtype=np.int64), np.array(list(map(len, ids)), dtype=np.int64)


def drawn(tokenizer: Tokenizer, lines: list[str], alpha: float, seed: int = 0) -> list[list[int]]:
    ids, lengths = Merges(tokenizer).draw(*encoded(tokenizer, lines), alpha, np.random.default_rng(seed))
    return [line.tolist() for line in np.split(ids, np.cumsum(lengths)[:-1])]


@settings(deadline=None)
@given(lines=st.lists(st.text("abcd deiHäus▁€\u2028;xyz"), min_size=1, max_size=6))
def test_with_no_merge_left_out_the_pieces_are_sentencepieces_own(bpe: Tokenizer, lines: list[str]) -> None:
    assert drawn(bpe, lines, 0.0) == bpe.encode(lines)


@settings(deadline=None)
@given(lines=st.lists(st.text("abcd deiHäus€\u2028;xyz"), min_size=1, max_size=6), alpha=st.floats(0.05, 1), seed=st.integers(0, 99))
def test_whatever_is_left_out_the_text_stays(bpe: Tokenizer, lines: list[str], alpha: float, seed: int) -> None:
    assert [bpe.decode(ids) for ids in drawn(bpe, lines, alpha, seed)] == [bpe.decode(ids) for ids in bpe.encode(lines)]


def test_with_all_merges_left_out_every_character_stands_alone(bpe: Tokenizer) -> None:
    assert [bpe.pieces(ids) for ids in drawn(bpe, ["die Häuser"], 1.0)] == [list("▁die▁Häuser")]


def by_algorithm_1(symbols: tuple[str, ...], ranks: dict[str, float], alpha: float) -> Counter[tuple[str, ...]]:
    """The probability of each segmentation of one word, by going through all that chance can do at each step."""
    places = [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in ranks]
    found: Counter[tuple[str, ...]] = Counter()
    for kept in range(1 << len(places)):
        left = [place for bit, place in enumerate(places) if kept >> bit & 1]
        share = (1 - alpha) ** len(left) * alpha ** (len(places) - len(left))
        if not left:
            found[symbols] += share
            continue
        i = max(left, key=lambda place: (ranks[symbols[place] + symbols[place + 1]], -place))
        merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
        for segmentation, chance in by_algorithm_1(merged, ranks, alpha).items():
            found[segmentation] += share * chance
    return found


def close(seen: Counter[tuple[str, ...]], expected: dict[tuple[str, ...], float]) -> bool:
    """Whether each count is within 5 standard deviations of what its probability has it be."""
    total = seen.total()
    return seen.keys() <= expected.keys() and all(
        abs(seen[key] - total * chance) <= 5 * math.sqrt(total * chance * (1 - chance)) + 1 for key, chance in expected.items()
    )


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_the_segmentations_of_a_word_have_the_probabilities_of_algorithm_1(bpe: Tokenizer, alpha: float) -> None:
    ranks = {piece: score for piece, score in bpe.vocabulary() if len(piece) > 1}
    seen = Counter(tuple(bpe.pieces(ids)) for ids in drawn(bpe, ["abcabc"] * 20_000, alpha))
    expected = by_algorithm_1(tuple("▁abcabc"), ranks, alpha)
    assert len(expected) > 4 and abs(expected.total() - 1) < 1e-9
    assert close(seen, expected)


def test_words_of_a_line_are_drawn_apart_from_each_other(bpe: Tokenizer) -> None:
    pairs = Counter(len(ids) for ids in drawn(bpe, ["ab ab"] * 4000, 0.5))
    alone = Counter(len(ids) for ids in drawn(bpe, ["ab"] * 4000, 0.5, seed=1))
    both = {a + b: 0.0 for a in alone for b in alone}
    for a, b in ((a, b) for a in alone for b in alone):
        both[a + b] += alone[a] * alone[b] / 4000
    assert len(pairs) >= 3 and all(abs(pairs[n] - expected) < 250 for n, expected in both.items())


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_a_unigram_segmentation_has_its_probability_to_the_power_of_alpha(alpha: float) -> None:
    tokenizer = trained("unigram", 300)
    likeliest = tokenizer.likeliest("abcab", 64)
    assert likeliest[0][0] == tokenizer.encode(["abcab"])[0] and len(likeliest) > 3
    total = sum(math.exp(alpha * score) for _, score in likeliest)
    expected = {tuple(map(str, ids)): math.exp(alpha * score) / total for ids, score in likeliest}
    resampler = Resampler(tokenizer, "unigram", Sampling(alpha=alpha, epochs=1), Path())
    ids, lengths = encoded(tokenizer, ["abcab", ""] * 3000)
    ids, lengths = resampler._draw_whole(ids, lengths, alpha, np.random.default_rng(0))
    assert (lengths[1::2] == 0).all()
    assert close(Counter(tuple(map(str, line)) for line in np.split(ids, np.cumsum(lengths)[:-1])[::2]), expected)
