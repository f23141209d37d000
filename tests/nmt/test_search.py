"""The search (§6.1) held against exhaustive search and a naive beam, on random tables in which each probability depends on the
whole history.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.config import parse
from nmt.errors import UserError
from nmt.search import DecodeConfig, Hypothesis, _top, beam_search, length_penalty, sample
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

REAL = 4  # ids from here on are words
History = tuple[int, ...]


@cache
def distribution(seed: int, sentence: int, history: History, vocabulary: int, end: float, zeros: float) -> np.ndarray:
    rng = np.random.default_rng([seed, sentence, *history])
    logits = rng.normal(size=vocabulary) * 1.5
    logits[[PAD, UNKNOWN, BOS]] += 4
    logits[EOS] += end
    logits[REAL:][rng.random(vocabulary - REAL) < zeros] = -np.inf
    return logits - np.logaddexp.reduce(logits)


class Table:
    """Next-token probabilities of `sentences` made-up sentences, a function of the sentence's number and of all its tokens so far.

    Padding, begin and unknown get most of the probability, so that a search that can choose them does. `end` is added to the logit of
    the end symbol, and a share of `zeros` of the words has probability 0. The table follows its rows through `parents`, and notes how
    many each call has. Where a sentence has fewer ways to go on than its beam is wide, rows of no meaning fill it, with any token.
    """

    def __init__(self, seed: int, words: int, sentences: Sequence[int] = (0,), end: float = 0.0, zeros: float = 0.0) -> None:
        self.seed, self.vocabulary, self.end, self.zeros = seed, REAL + words, end, zeros
        self.sentences = list(sentences)
        self.rows: list[tuple[int, History]] = [(sentence, ()) for sentence in self.sentences]
        self.calls: list[int] = []

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        assert tokens.shape == parents.shape
        if not self.calls:
            assert (tokens == BOS).all() and parents.tolist() == list(range(len(self.sentences)))
        else:
            pairs = zip(tokens.tolist(), parents.tolist(), strict=True)
            self.rows = [(self.rows[parent][0], (*self.rows[parent][1], token)) for token, parent in pairs]
        self.calls.append(len(tokens))
        return torch.tensor(np.stack([self.log_probs(sentence, history) for sentence, history in self.rows]))

    def log_probs(self, sentence: int, history: History) -> np.ndarray:
        return distribution(self.seed, sentence, history, self.vocabulary, self.end, self.zeros)

    def log_prob(self, sentence: int, ids: Sequence[int]) -> float:
        """Of the whole hypothesis, end symbol included."""
        tokens = (*ids, EOS)
        return float(sum(self.log_probs(sentence, tokens[:place])[token] for place, token in enumerate(tokens)))


Penalty = Literal["wu", "length", "none"]


def config(beam: int, alpha: float = 0.6, stop: Literal["exact", "beam_filled"] = "exact", penalty: Penalty = "wu") -> DecodeConfig:
    bounded = DecodeConfig(beam_size=1, length_penalty=alpha, penalty=penalty, max_length_offset=50, stop=stop, precision="float32")
    return bounded.model_copy(update={"beam_size": beam})  # exhaustive search needs beams beyond what a user may ask for


def penalty_of(ids: Sequence[int], alpha: float, penalty: Penalty = "wu") -> float:
    length = len(ids) + 1
    return float({"wu": ((5 + length) / 6) ** alpha, "length": length**alpha, "none": 1}[penalty])


def exhaustive(
    table: Table, sentence: int, longest: int, alpha: float, penalty: Penalty = "wu", prefix: Sequence[int] = ()
) -> list[tuple[float, list[int]]]:
    """Every sequence of words up to `longest` with its score, best first."""
    words = range(REAL, table.vocabulary)
    every = [[*prefix, *ids] for length in range(longest - len(prefix) + 1) for ids in product(words, repeat=length)]
    scored = [(table.log_prob(sentence, ids) / penalty_of(ids, alpha, penalty), ids) for ids in every]
    return sorted(((score, ids) for score, ids in scored if score > -math.inf), reverse=True)


def naive(table: Table, sentence: int, longest: int, alpha: float, beam: int, nbest: int) -> tuple[list[tuple[float, list[int]]], int]:
    """Beam search by sorted lists that never stops early, and how many calls are enough to know its `nbest` best."""
    live, ended, needed = [(0.0, ())], [], None
    for length in range(longest + 1):
        tokens = range(REAL, table.vocabulary) if length < longest else ()
        grown = [(sum_ + table.log_probs(sentence, ids)[t], (*ids, t)) for sum_, ids in live for t in (EOS, *tokens)]
        ranked = sorted((pair for pair in grown if pair[0] > -math.inf), reverse=True)
        ended += [(sum_ / penalty_of(ids[:-1], alpha), list(ids[:-1])) for sum_, ids in ranked[:beam] if ids[-1] == EOS]
        ended.sort(reverse=True)
        live = [(sum_, ids) for sum_, ids in ranked if ids[-1] != EOS][:beam]
        reachable = live[0][0] / ((5 + longest + 1) / 6) ** alpha if live else -math.inf
        if needed is None and (not live or (len(ended) >= nbest and ended[nbest - 1][0] >= reachable)):
            needed = length + 1
    return ended[:nbest], needed or longest + 1


def assert_same(found: Sequence[Hypothesis], expected: Sequence[tuple[float, list[int]]]) -> None:
    assert [h.ids for h in found] == [ids for _, ids in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], rel=1e-5)


def test_the_length_penalty_is_that_of_wu_et_al() -> None:
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(19, 0.5) == 2
    assert length_penalty(31, 0.0) == 1
    assert length_penalty(49, 2.0) == 81


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("words", "longest"), [(3, 1), (3, 2), (3, 3), (3, 4), (4, 1), (4, 2), (4, 3), (4, 4)])
def test_a_wide_beam_finds_what_exhaustive_search_finds(words: int, longest: int, alpha: float) -> None:
    beam = (words + 1) * words ** (longest - 1)  # every candidate of every step has its place
    for seed in range(3):
        table = Table(seed, words)
        expected = exhaustive(table, 0, longest, alpha)
        for nbest in (1, 4, beam):
            [found] = beam_search(Table(seed, words), [longest], config(beam, alpha), nbest)
            assert_same(found, expected[:nbest])
        [filled] = beam_search(Table(seed, words), [longest], config(2 * beam, alpha, "beam_filled"), beam)
        assert_same(filled, expected[:beam])  # never filled, so it goes on to the end


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("penalty", ["wu", "length", "none"])
@pytest.mark.parametrize("longest", [1, 2, 3, 4, 5, 6])
def test_every_penalty_finds_what_exhaustive_search_finds(longest: int, penalty: Penalty, alpha: float) -> None:
    for seed in range(2):
        [found] = beam_search(Table(seed, 2), [longest], config(3 * 2**longest, alpha, penalty=penalty), 5)
        assert_same(found, exhaustive(Table(seed, 2), 0, longest, alpha, penalty)[:5])


def test_the_penalties_are_what_they_are_called() -> None:
    """Of a hypothesis of 4 tokens, end symbol counted: ((5 + 4) / 6)^2, 4^2 and 1."""
    assert [config(1, 2.0, penalty=kind).penalty_of(4) for kind in ("wu", "length", "none")] == [2.25, 16, 1]


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("stop", ["exact", "beam_filled"])
def test_with_a_prefix_the_best_is_the_best_of_those_that_begin_with_it(length: int, stop: Literal["exact", "beam_filled"]) -> None:
    for seed in range(4):
        prefixes = [[REAL + (seed + place) % 3 for place in range(length)], [], [REAL]]
        longest = [4, 4, 3]
        found = beam_search(Table(seed, 3, range(3)), longest, config(120, stop=stop), 6, prefixes)
        for sentence, (result, prefix) in enumerate(zip(found, prefixes, strict=True)):
            assert_same(result, exhaustive(Table(seed, 3, range(3)), sentence, longest[sentence], 0.6, prefix=prefix)[:6])


def test_a_prefix_beyond_the_maximum_length_is_all_there_is() -> None:
    table, prefix = Table(3, 3), [REAL, REAL + 2, REAL + 1]
    [[found]] = beam_search(table, [2], config(4), 1, [prefix])
    assert (found.ids, found.finished) == (prefix, False)
    assert found.log_prob == pytest.approx(table.log_prob(0, prefix))


def test_draws_follow_the_models_probabilities() -> None:
    """Of 4,000 draws each hypothesis makes up its share, to within five standard deviations; what is no word is never drawn."""
    table, draws = Table(7, 2), 4000
    [found] = sample(Table(7, 2), [2], config(1), [11], draws)

    def share(ids: Sequence[int]) -> float:
        chance = 1.0
        for place, token in enumerate([*ids, EOS] if len(ids) < 2 else ids):  # at the maximum length the end is no draw
            probabilities = np.exp(table.log_probs(0, tuple(ids[:place])))
            probabilities[[PAD, UNKNOWN, BOS]] = 0
            chance *= probabilities[token] / probabilities.sum()
        return chance

    for ids in [list(ids) for length in range(3) for ids in product((REAL, REAL + 1), repeat=length)]:
        drawn = [h for h in found if h.ids == ids]
        assert abs(len(drawn) - draws * share(ids)) < 5 * (draws * share(ids)) ** 0.5
        for h in drawn[:1]:
            assert h.log_prob == pytest.approx(table.log_prob(0, ids), rel=1e-5)
            assert h.score == pytest.approx(h.log_prob / penalty_of(ids, 0.6))
            assert h.finished == (len(ids) < 2)


def test_a_draw_depends_on_its_seed_and_number_alone() -> None:
    limits, seeds = [9, 2, 9], [5, 6, 5]
    found = sample(Table(8, 5, sentences=[0, 1, 0]), limits, config(1), seeds, 3)
    assert found[0] == found[2] != found[1] and len({tuple(h.ids) for h in found[0]}) > 1
    [alone] = sample(Table(8, 5, sentences=[1]), [2], config(1), [6], 2)
    assert alone == found[1][:2]
    [other] = sample(Table(8, 5), [9], config(1), [7], 3)
    assert other != found[0]
    [begun] = sample(Table(8, 5), [9], config(1), [7], 3, [[REAL, REAL]])
    assert all(h.ids[:2] == [REAL, REAL] for h in begun)


@pytest.mark.parametrize("width", [5, 64, 700, 1000, 1024])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_largest_of_a_row_are_found_block_by_block(width: int, count: int) -> None:
    torch.manual_seed(width)
    x = torch.randn(20, width)
    x[3] = -torch.inf
    x[4, :] = 0
    x[5, -1] = 9  # behind the last whole block
    values, columns = _top(x, count)
    assert torch.equal(values, x.topk(count).values) and torch.equal(x.gather(1, columns), values)
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 4, 9])
def test_the_exact_stop_loses_against_no_early_stop_never_and_comes_as_soon_as_it_can(beam: int, alpha: float) -> None:
    early = 0
    for seed in range(12):
        for nbest in {1, min(2, beam), beam}:
            table = Table(seed, 4, end=(-1.0, 1.0)[seed % 2])
            [found] = beam_search(table, [8], config(beam, alpha), nbest)
            expected, needed = naive(Table(seed, 4, end=table.end), 0, 8, alpha, beam, nbest)
            assert_same(found, expected)
            assert len(table.calls) == needed
            early += needed < 9
    assert early > 0


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_beam_of_one_that_stops_when_filled_is_greedy(alpha: float) -> None:
    for seed in range(20):
        table, ids = Table(seed, 4), []
        while len(ids) < 6:
            best = max(range(EOS, table.vocabulary), key=lambda token: table.log_probs(0, tuple(ids))[token])
            if best == EOS:
                break
            ids.append(best)
        [[found]] = beam_search(Table(seed, 4), [6], config(1, alpha, "beam_filled"))
        assert (found.ids, found.finished) == (ids, len(ids) < 6)
        [[exact]] = beam_search(Table(seed, 4), [6], config(1, alpha, "exact"))
        assert exact.score >= found.score - 1e-6
        if alpha == 0:  # no longer hypothesis can catch up, so the first that ends is the best
            assert exact.ids == ids


@pytest.mark.parametrize("stop", ["exact", "beam_filled"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beam", [1, 4])
def test_every_hypothesis_has_the_score_of_its_tokens_and_the_best_stands_first(
    beam: int, alpha: float, stop: Literal["exact", "beam_filled"]
) -> None:
    table, longest = Table(5, 6, sentences=range(12)), [1, 2, 6] * 4
    results = beam_search(table, longest, config(beam, alpha, stop), beam)
    for sentence, found in enumerate(results):
        assert 1 <= len(found) <= beam and len({tuple(h.ids) for h in found}) == len(found)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for h in found:
            assert all(REAL <= token < table.vocabulary for token in h.ids)
            assert h.log_prob == pytest.approx(table.log_prob(sentence, h.ids), rel=1e-5)
            assert h.score == pytest.approx(h.log_prob / penalty_of(h.ids, alpha), rel=1e-12)
            assert h.finished == (len(h.ids) < longest[sentence])
    assert {h.finished for found in results for h in found} == {True, False}


@pytest.mark.parametrize("stop", ["exact", "beam_filled"])
def test_sentences_of_one_batch_do_not_influence_each_other(stop: Literal["exact", "beam_filled"]) -> None:
    longest = [1, 7, 3, 12, 5, 2, 9]
    for seed in range(4):
        together = beam_search(Table(seed, 5, sentences=range(7), end=0.5), longest, config(3, stop=stop), 3)
        for sentence, found in enumerate(together):
            [alone] = beam_search(Table(seed, 5, sentences=[sentence], end=0.5), longest[sentence : sentence + 1], config(3, stop=stop), 3)
            assert found == alone
            assert max(len(h.ids) for h in found) <= longest[sentence]


def test_the_model_is_asked_about_living_rows_alone() -> None:
    table = Table(1, 5, sentences=range(3), end=-60)
    beam_search(table, [1, 2, 4], config(2))
    assert table.calls == [3, 6, 4, 2, 2]


@pytest.mark.parametrize("nbest", [2, 3, 4])
def test_more_hypotheses_do_not_change_the_best(nbest: int) -> None:
    for seed in range(30):
        [one] = beam_search(Table(seed, 5), [7], config(4), 1)
        [more] = beam_search(Table(seed, 5), [7], config(4), nbest)
        assert len(one) == 1 and len(more) == nbest and more[0] == one[0]


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_filled_beam_stops_the_search(beam: int) -> None:
    table = Table(2, 5, end=3.0)
    [found] = beam_search(table, [50], config(beam, 0.6, "beam_filled"), beam)
    ended = 0  # counted by the naive search: hypotheses that end among the best `beam` of a step
    live: list[tuple[float, History]] = [(0.0, ())]
    steps = 0
    while ended < beam:
        steps += 1
        tokens = range(EOS, table.vocabulary)
        ranked = sorted(((sum_ + table.log_probs(0, ids)[t], (*ids, t)) for sum_, ids in live for t in tokens), reverse=True)
        ended += sum(ids[-1] == EOS for _, ids in ranked[:beam])
        live = [pair for pair in ranked if pair[1][-1] != EOS][:beam]
    assert len(table.calls) == steps and len(found) == beam


@pytest.mark.parametrize("stop", ["exact", "beam_filled"])
@pytest.mark.parametrize("beam", [8, 50])
def test_a_beam_wider_than_the_vocabulary_is_a_wide_beam(beam: int, stop: Literal["exact", "beam_filled"]) -> None:
    [found] = beam_search(Table(3, 3), [2], config(beam, 0.6, stop), beam)
    assert_same(found, exhaustive(Table(3, 3), 0, 2, 0.6)[:beam])
    [one] = beam_search(Table(3, 1), [3], config(beam, 0.6, stop), beam)
    assert [set(h.ids) <= {REAL} for h in one] == [True] * 4 and sorted(len(h.ids) for h in one) == [0, 1, 2, 3]


@pytest.mark.parametrize("stop", ["exact", "beam_filled"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_that_never_ends_is_stopped_at_each_sentences_own_length(beam: int, stop: Literal["exact", "beam_filled"]) -> None:
    longest = [1, 30, 6]
    results = beam_search(Table(9, 5, sentences=range(3), end=-1000), longest, config(beam, 0.6, stop), beam)
    for found, limit in zip(results, longest, strict=True):
        assert {len(h.ids) for h in found} == {limit}
        assert not any(h.finished for h in found)
        assert all(-2000 < h.log_prob < -900 for h in found)  # the forced end symbol is paid for


def test_a_model_that_ends_at_once_is_asked_once() -> None:
    table = Table(4, 5, end=60.0)
    assert [h.ids for h in beam_search(table, [50], config(4))[0]] == [[]]
    assert table.calls == [1]


def test_tokens_of_probability_zero_are_never_chosen() -> None:
    for seed in range(20):
        table = Table(seed, 4, zeros=0.7)
        [found] = beam_search(Table(seed, 4, zeros=0.7), [3], config(500, 0.6), 500)
        assert_same(found, exhaustive(table, 0, 3, 0.6))


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_size", 257), ("beam_size", 0), *(("length_penalty", value) for value in (math.inf, math.nan, 10.1, -0.1))],
)
def test_numbers_that_no_search_can_work_with_are_refused(name: str, value: float) -> None:
    values = config(4).model_dump() | {name: value}
    with pytest.raises(UserError, match=rf"^decode\.{name} is "):
        parse(DecodeConfig, values, "decode")
