"""Beam search over any model that can say how likely each next token is.

B sentences, K beams, N = B * K rows, V vocabulary. The search knows no Transformer: it hands the tokens chosen last to a
callable and gets log probabilities back, so that a test can put a table behind it.

A hypothesis is a sequence of tokens that ends with the end symbol; its log probability is the sum over all of them, its
score log probability / length_penalty(tokens, end symbol counted). The end symbol is forced where a sentence reaches its
maximum length, so that every hypothesis has the score which a teacher-forced pass would give it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from nmt.config import Config
from nmt.symbols import BOS, EOS, PAD, UNKNOWN

NextLogProbs = Callable[[Tensor, Tensor], Tensor]
"""(tokens [N], parents [N]) -> log probabilities [N, V] of the token behind.

Row i continues row parents[i] of the call before with tokens[i]. The first call has one row a sentence, tokens = BOS and
parents = 0 … B-1; later calls have equally many rows, at most K, for each sentence that goes on, in order. A sentence with fewer ways
to go on than the others has rows of no meaning among them, with any token.
"""


class DecodeConfig(Config):
    """Section `decode`, §6.1."""

    beam_size: int = Field(ge=1)
    length_penalty: float = Field(ge=0)
    max_length_offset: int = Field(ge=0)
    stop: Literal["exact", "beam_filled"]
    precision: Literal["float32", "bfloat16"]


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
def beam_search(next_log_probs: NextLogProbs, max_lengths: Sequence[int], config: DecodeConfig, nbest: int = 1) -> list[list[Hypothesis]]:
    """The best hypotheses for each of B sentences, best first; at least one, at most `nbest` (which is at most K).

    `max_lengths` [B] is the most tokens of each sentence before its end symbol, at least 1. A sentence ends as `config.stop` says:
    `exact` when its `nbest` best ended hypotheses can no longer be beaten, `beam_filled` when K have ended.
    """
    search = _Search(max_lengths, config, nbest)
    tokens, parents = torch.full((len(max_lengths),), BOS), torch.arange(len(max_lengths))
    while len(search.live):
        tokens, parents = search.advance(next_log_probs(tokens, parents))
    return [[hypothesis for _, hypothesis in ended[:nbest]] for ended in search.ended]


class _Search:
    """The state between two calls of the model."""

    def __init__(self, max_lengths: Sequence[int], config: DecodeConfig, nbest: int) -> None:
        self.config, self.nbest = config, min(nbest, config.beam_size)
        self.max_lengths = list(max_lengths)
        self.ended: list[list[tuple[float, Hypothesis]]] = [[] for _ in max_lengths]  # by sentence, best first
        self.live = list(range(len(max_lengths)))  # sentences that go on
        self.scores = torch.zeros(len(max_lengths), 1)  # float32 [live, beams]: log probability so far
        self.histories = torch.zeros(len(max_lengths), 1, 0, dtype=torch.long)  # [live, beams, tokens so far]

    def advance(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Extend all hypotheses by one token. Returns tokens and parents [N] of those that live on."""
        beams, vocabulary, size = self.scores.size(1), log_probs.size(-1), self.config.beam_size
        length = self.histories.size(2)
        totals = log_probs.to("cpu", torch.float32).view(-1, beams, vocabulary) + self.scores[:, :, None]
        totals[:, :, [PAD, UNKNOWN, BOS]] = -torch.inf
        for row, sentence in enumerate(self.live):
            if length == self.max_lengths[sentence]:
                ends = totals[row, :, EOS].clone()
                totals[row] = -torch.inf
                totals[row, :, EOS] = ends
        # Of 2 K candidates at most K end, so K are left to go on.
        candidates = min(2 * size, beams * vocabulary)
        best, flat = totals.flatten(1).topk(candidates)  # [live, candidates]
        parents, tokens = flat // vocabulary, flat % vocabulary
        ends = tokens == EOS
        self._collect(best, parents, ends, size)
        order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :size]  # those that go on first, by score
        scores, parents, tokens = (x.gather(1, order) for x in (best.masked_fill(ends, -torch.inf), parents, tokens))
        going = [row for row in range(len(self.live)) if not self._is_over(row, scores[row, 0].item(), length + 1)]
        keep = torch.tensor(going, dtype=torch.long)
        scores, parents, tokens = scores[keep], parents[keep], tokens[keep]
        histories = self.histories[keep].gather(1, parents[:, :, None].expand(-1, -1, length))
        self.live = [self.live[row] for row in going]
        self.scores, self.histories = scores, torch.cat([histories, tokens[:, :, None]], 2)
        return tokens.flatten(), (keep[:, None] * beams + parents).flatten()

    def _collect(self, best: Tensor, parents: Tensor, ends: Tensor, size: int) -> None:
        """Note the hypotheses that end among the best `size` of each sentence."""
        length = self.histories.size(2)
        penalty = length_penalty(length + 1, self.config.length_penalty)
        for row, rank in ends[:, :size].nonzero().tolist():
            log_prob = best[row, rank].item()
            if log_prob == -torch.inf:
                continue
            sentence = self.live[row]
            ids = self.histories[row, parents[row, rank]].tolist()
            hypothesis = Hypothesis(ids, log_prob, log_prob / penalty, length < self.max_lengths[sentence])
            self.ended[sentence].append((hypothesis.score, hypothesis))
            self.ended[sentence].sort(key=lambda pair: -pair[0])  # stable: of two equal ones the earlier is the better

    def _is_over(self, row: int, best_live: float, length: int) -> bool:
        """Whether the sentence in `row` needs no further step, its best live hypothesis having `length` tokens."""
        sentence = self.live[row]
        ended, longest = self.ended[sentence], self.max_lengths[sentence]
        if length > longest or best_live == -torch.inf:
            return True
        if self.config.stop == "beam_filled":
            return len(ended) >= self.config.beam_size
        # Log probabilities only fall, and the longest hypothesis is divided by most: no live one can end up above this.
        bound = best_live / length_penalty(longest + 1, self.config.length_penalty)
        return len(ended) >= self.nbest and ended[self.nbest - 1][0] >= bound
