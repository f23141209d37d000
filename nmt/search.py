"""Beam search, and sampling, over any model that can say how likely each next token is.

B sentences, K hypotheses of each (its beams), N = B * K rows, V vocabulary. The search knows no Transformer: it hands the tokens chosen
last to a callable and gets log probabilities back, so that a test can put a table behind it.

A hypothesis is a sequence of tokens that ends with the end symbol; its log probability is the sum over all of them, its
score log probability / penalty(tokens, end symbol counted). The end symbol is forced where a sentence reaches its
maximum length, so that every hypothesis has the score which a teacher-forced pass would give it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nmt.config import Config
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

NextLogProbs = Callable[[Tensor, Tensor], Tensor]
"""(tokens [N], parents [N]) -> log probabilities [N, V] of the token behind, which the search may overwrite.

Row i continues row parents[i] of the call before with tokens[i]. The first call has one row a sentence, tokens = BOS and
parents = 0 … B-1; later ones have K rows, one behind the other, for each sentence that goes on. As few sentences as possible move: where
one has ended, the last takes its place. A sentence with fewer ways to go on than K has rows of no meaning among them, with any token.
"""
Array = np.ndarray[Any, np.dtype[Any]]
NEVER = [PAD, UNKNOWN, BOS]  # are no words
BLOCK = 64  # columns of which `_top` looks at the largest first
MOST_BEAMS, MOST_ALPHA = 256, 10.0  # a larger beam takes minutes a sentence, a larger exponent is beyond any number


class DecodeConfig(Config):
    """Section `decode`, §6.1."""

    beam_size: int = Field(ge=1, le=MOST_BEAMS)
    length_penalty: float = Field(ge=0, le=MOST_ALPHA, allow_inf_nan=False)
    penalty: Literal["wu", "length", "none"] = "wu"
    max_length_offset: int = Field(ge=0)
    stop: Literal["exact", "beam_filled"]
    precision: Literal["float32", "bfloat16", "int8"]

    def penalty_of(self, length: int) -> float:
        """What the log probability of a hypothesis of `length` tokens, end symbol counted, is divided by; never falls with the length."""
        match self.penalty:
            case "wu":
                return length_penalty(length, self.length_penalty)
            case "length":
                return float(length**self.length_penalty)
            case "none":
                return 1.0


@dataclass(frozen=True)
class Hypothesis:
    """One translation as token ids."""

    ids: list[int]  # without begin and end symbols
    log_prob: float  # of all tokens, end symbol included
    score: float  # log_prob over the length penalty
    finished: bool  # false where the end symbol was forced at the maximum length


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha  # type: ignore[no-any-return]


@torch.inference_mode()
def beam_search(
    next_log_probs: NextLogProbs,
    max_lengths: Sequence[int],
    config: DecodeConfig,
    nbest: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each of B sentences, best first; at least one, at most `nbest` (which is at most K).

    `max_lengths` [B] is the most tokens of each sentence before its end symbol. A sentence ends as `config.stop` says: `exact` when its
    `nbest` best ended hypotheses can no longer be beaten, `beam_filled` when K have ended. All hypotheses of a sentence begin with its
    prefix, if `prefixes` has one for it, which counts in score and length; a maximum length below the prefix's is raised to it.
    """
    search = _Search(_Forced(max_lengths, prefixes), config, nbest)
    tokens, parents = torch.full((len(max_lengths),), BOS), torch.arange(len(max_lengths))
    while len(search.live):
        tokens, parents = search.advance(next_log_probs(tokens, parents))
    return [search.hypotheses(sentence) for sentence in range(len(max_lengths))]


@torch.inference_mode()
def sample(
    next_log_probs: NextLogProbs,
    max_lengths: Sequence[int],
    config: DecodeConfig,
    seeds: Sequence[int],
    draws: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """`draws` hypotheses for each of B sentences, drawn token by token from the model's probabilities, in the order of the draws.

    Draw d of a sentence depends on its seed in `seeds` [B] and on d, not on the other draws or sentences. The rest as for `beam_search`.
    """
    forced = _Forced(max_lengths, prefixes)
    batch = len(max_lengths)
    luck = [np.random.default_rng([seed, draw]) for seed in seeds for draw in range(draws)]
    chosen: list[list[int]] = [[] for _ in luck]
    sums, over = np.zeros(len(luck)), np.zeros(len(luck), dtype=bool)
    tokens, parents = torch.full((batch,), BOS), torch.arange(batch)
    while not over.all():
        step = len(max(chosen, key=len))
        log_probs = next_log_probs(tokens, parents).to("cpu", torch.float64).numpy()
        if step == 0:
            log_probs = log_probs.repeat(draws, axis=0)
        for row in np.flatnonzero(~over):
            token = forced.token(int(row) // draws, step)
            if token is None:
                words = log_probs[row].copy()
                words[NEVER] = -np.inf
                cumulated = np.exp(words).cumsum()
                token = int(np.searchsorted(cumulated, luck[row].random() * cumulated[-1], side="right"))
            sums[row] += log_probs[row, token]
            chosen[row].append(token)
            over[row] = token == EOS
        tokens = torch.tensor([ids[step] if len(ids) > step else EOS for ids in chosen])
        parents = torch.arange(batch).repeat_interleave(draws) if step == 0 else torch.arange(len(luck))
    found = [
        Hypothesis(ids[:-1], log_prob, log_prob / config.penalty_of(len(ids)), bool(len(ids) <= forced.limits[row // draws]))
        for row, (ids, log_prob) in enumerate(zip(chosen, sums.tolist(), strict=True))
    ]
    return [found[first : first + draws] for first in range(0, len(found), draws)]


class _Forced:
    """Where a sentence has no choice: in its prefix, and at its maximum length."""

    def __init__(self, max_lengths: Sequence[int], prefixes: Sequence[Sequence[int]] | None) -> None:
        self.prefixes = prefixes or [()] * len(max_lengths)
        self.limits = np.array([max(most, len(p)) for most, p in zip(max_lengths, self.prefixes, strict=True)], dtype=np.int64)  # [B]
        self.longest = max(map(len, self.prefixes), default=0)

    def token(self, sentence: int, step: int) -> int | None:
        """The only token that may stand behind the first `step` tokens."""
        if step < len(self.prefixes[sentence]):
            return self.prefixes[sentence][step]
        return EOS if step >= self.limits[sentence] else None

    def tokens(self, live: Sequence[int], step: int) -> list[tuple[int, int]]:
        """The places in `live` of the sentences that have no choice, each with its token."""
        if step < self.longest or step >= self.limits[live].min():
            return [(place, token) for place, sentence in enumerate(live) if (token := self.token(sentence, step)) is not None]
        return []


@dataclass(frozen=True)
class _End:
    """A hypothesis that has ended: its tokens are found by going back from the row it stood in."""

    score: float
    log_prob: float
    length: int  # tokens before the end symbol
    beam: int  # where it stood then


class _Search:
    """The state between two calls of the model."""

    def __init__(self, forced: _Forced, config: DecodeConfig, nbest: int) -> None:
        batch, size = len(forced.limits), config.beam_size
        self.forced, self.config, self.nbest = forced, config, min(nbest, size)
        self.live = np.arange(batch)  # sentences that go on, in the order of the rows
        self.scores = np.zeros((batch, 1))  # float64 [live, beams]: log probability so far, -inf for a row of no meaning
        self.steps: list[tuple[Array, Array]] = []  # token and parent beam chosen in each step, both [B, K] int32
        self.ended: list[list[_End]] = [[] for _ in range(batch)]  # by sentence, best first
        self.counts = np.zeros(batch, dtype=np.int64)  # of those
        self.to_beat = np.full(batch, -np.inf)  # score of the last of the `nbest` best ended ones
        self.reach = np.array([config.penalty_of(int(limit) + 1) for limit in forced.limits])  # penalty of the longest hypothesis

    def advance(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Extend all hypotheses by one token. Returns tokens and parents [N] of those that live on."""
        beams, size = self.scores.shape[1], self.config.beam_size
        values, words = self._candidates(log_probs)  # [live, beams * candidates of a row]
        per_row = values.shape[1] // beams
        # Of 2 K candidates at most K end, so K are left to go on.
        order = np.argsort(-values, axis=1, kind="stable")[:, : 2 * size]
        best, parents, tokens = np.take_along_axis(values, order, 1), order // per_row, np.take_along_axis(words, order, 1)
        ends = tokens == EOS
        self._collect(best[:, :size], parents, ends[:, :size])
        best[ends] = -np.inf
        going = np.argsort(ends, axis=1, kind="stable")[:, :size]  # those that go on first, by score
        best, parents, tokens = (
            _widened(np.take_along_axis(x, going, 1), size, rest) for x, rest in ((best, -np.inf), (parents, 0), (tokens, EOS))
        )
        record = np.zeros((2, len(self.ended), size), dtype=np.int32)
        record[:, self.live] = tokens, parents
        self.steps.append((record[0], record[1]))
        keep = _compacted(~self._over(best.max(1)))
        self.live, self.scores = self.live[keep], best[keep]
        rows = keep[:, None] * beams + parents[keep]
        return torch.from_numpy(tokens[keep].reshape(-1)), torch.from_numpy(rows.reshape(-1))

    def _candidates(self, log_probs: Tensor) -> tuple[Array, Array]:
        """Sum of log probabilities and last token of the best continuations of each row. [live, beams * candidates]"""
        beams, step = self.scores.shape[1], len(self.steps)
        forced = self.forced.tokens(self.live.tolist(), step)
        places = torch.tensor(
            [place * beams + beam for place, _ in forced for beam in range(beams)], dtype=torch.long, device=log_probs.device
        )
        allowed = torch.tensor([token for _, token in forced for _ in range(beams)], dtype=torch.long, device=log_probs.device)
        only = log_probs[places, allowed]
        log_probs[:, NEVER] = -torch.inf
        values, words = _top(log_probs, min(2 * self.config.beam_size, log_probs.size(1)))
        values[places], words[places] = -torch.inf, EOS
        values[places, 0], words[places, 0] = only, allowed
        totals = values.to("cpu", torch.float64).view(len(self.live), beams, -1).numpy() + self.scores[:, :, None]
        return totals.reshape(len(self.live), -1), words.cpu().numpy().reshape(len(self.live), -1)

    def _collect(self, best: Array, parents: Array, ends: Array) -> None:
        """Note the hypotheses that end among the best K of each sentence."""
        length = len(self.steps)
        penalty = self.config.penalty_of(length + 1)
        for place, rank in zip(*(indices.tolist() for indices in np.nonzero(ends & (best > -np.inf))), strict=True):
            sentence, log_prob = self.live[place], float(best[place, rank])
            ended = self.ended[sentence]
            ended.append(_End(log_prob / penalty, log_prob, length, int(parents[place, rank])))
            ended.sort(key=lambda end: -end.score)  # stable: of two equal ones the earlier is the better
            self.counts[sentence] += 1
            if len(ended) >= self.nbest:
                self.to_beat[sentence] = ended[self.nbest - 1].score

    def _over(self, best_live: Array) -> Array:
        """Which of the live sentences need no further step, `best_live` [live] being the score of their best live hypotheses."""
        if self.config.stop == "beam_filled":
            decided = self.counts[self.live] >= self.config.beam_size
        else:
            # Log probabilities only fall, and the longest hypothesis is divided by most: no live one can end up above this.
            decided = self.to_beat[self.live] >= best_live / self.reach[self.live]
        over: Array = decided | (len(self.steps) > self.forced.limits[self.live]) | (best_live == -np.inf)
        return over

    def hypotheses(self, sentence: int) -> list[Hypothesis]:
        """The best that have ended."""
        found = []
        for end in self.ended[sentence][: self.nbest]:
            ids, beam = [], end.beam
            for tokens, parents in reversed(self.steps[: end.length]):
                ids.append(int(tokens[sentence, beam]))
                beam = parents[sentence, beam]
            found.append(Hypothesis(ids[::-1], end.log_prob, end.score, bool(end.length < self.forced.limits[sentence])))
        return found


def _top(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row of x [N, V] and their columns, largest first.

    Exact: they all lie in the `count` blocks with the largest maxima, or behind the last block. Only those are sorted.
    """
    blocks = x.size(1) // BLOCK
    if blocks <= 2 * count:
        values, columns = x.topk(count)
        return values, columns
    whole = blocks * BLOCK
    maxima = x[:, :whole].unflatten(1, (blocks, BLOCK)).amax(2)
    chosen = maxima.topk(count, sorted=False).indices  # [N, count]
    columns = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    columns = torch.cat([columns, torch.arange(whole, x.size(1), device=x.device).expand(x.size(0), -1)], 1)
    values, places = x.gather(1, columns).topk(count)
    return values, columns.gather(1, places)


def _widened(x: Array, width: int, rest: float) -> Array:
    """x [B, ≤ width] with columns of `rest` behind it. [B, width]"""
    return np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=rest) if x.shape[1] < width else x


def _compacted(going: Array) -> Array:
    """The places that go on, in an order in which as few as possible move: those at the end fill the holes."""
    count = int(going.sum())
    moved = iter((count + np.flatnonzero(going[count:])).tolist())
    return np.array([place if going[place] else next(moved) for place in range(count)], dtype=np.int64)
