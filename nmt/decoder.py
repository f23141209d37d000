"""The Transformer's decoder one token at a time, with keys and values cached: what beam search calls.

B sentences, K hypotheses of each (beams), N = B * K rows, H heads, T tokens so far, S source tokens, L layers.

A sentence's cache holds the keys and values of all tokens that any of its hypotheses ever had, T * K of them, and a mask says
which of them a row descends from. So when hypotheses are dropped, doubled and reordered, nothing moves but rows of the mask; and one
product of K rows serves a sentence, where K single rows would read as much memory at a fraction of the speed.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nmt.batches import rounded
from nmt.memory import Memory, multiple
from nmt.model import COMPILATION, DecoderLayer, attention
from nmt.products import LEAST_ROWS, Decoding
from nmt.search import NextLogProbs
from nmt.symbols import EOS

LEAST_ROOM = 8  # tokens


def bytes_of_sentence(decoding: Decoding, width: int, beams: int) -> int:
    """About how much memory a sentence takes that is padded to `width`, K = `beams`: to encode it, or its caches and a step's logits."""
    config, vocabulary = decoding.model.config, decoding.model.vocab_size
    encoding = 3 * config.heads * width * width  # scores, weights, and one more while they are computed
    cached = config.layers * config.heads * (config.d_k + config.d_v) * (width + _room(width + LEAST_ROOM) * beams)
    return 4 * max(encoding, cached + 2 * beams * vocabulary)


class CachedDecoder:
    """A `nmt.search.NextLogProbs` with K = `beams` for `sources`, tensors [B, S] of one padded length each, one behind the other.

    Sentences of all lengths share a step's products of rows, and attend to their sources length by length. Behind the sentences stand
    copies, so that one kernel computes the products (`nmt.products`): for attention few or none, and as rows of the other products, which
    nobody sees, some more.
    """

    def __init__(self, decoding: Decoding, sources: Sequence[Tensor], beams: int) -> None:
        self.decoding, self.beams, self.length = decoding, beams, 0
        self.enough = decoding.enough(2 * beams * beams)
        self.together = max(-(-LEAST_ROWS // beams), self.enough)
        self.layers = [layer for layer in decoding.model.decoder if isinstance(layer, DecoderLayer)]
        self.memory: list[Memory] = []
        self.sentences = 0
        for src in sources:
            self.memory.append(Memory(decoding, self.layers, src, self.sentences))
            self.sentences += len(src)
        keys, values = self.memory[0].keys, self.memory[0].values
        heads = (keys.size(0), self.cached, keys.size(2))  # [L, B, H]
        # T * K for S, and 0 in the places behind them. Products take the whole: a part they would copy, and each length prepare for.
        self.own = [keys.new_empty(*heads, keys.size(3), 0), keys.new_empty(*heads, 0, values.size(4))]
        self.mask = keys.new_empty(self.cached, beams, 0)  # 0 for what a row descends from, -inf for the rest
        self.newest = keys.new_full((beams, beams), -math.inf).fill_diagonal_(0)
        self.order, self.back = self._by_length(1)

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind `tokens` [N], which continue the rows `parents` [N]."""
        first = self.length == 0
        beams = 1 if first else self.beams
        if not first:
            self._reorder(parents)
        self._extend_mask()
        cached = self.cached
        rows = tokens.new_full((self.rows * beams,), EOS)
        rows[: len(tokens)] = tokens
        x = self.decoding.embed(rows.to(self.decoding.device)[:, None], self.length, "tgt")[0]  # [N, D]
        attend, finish = _compiled() if self.decoding.compiled and not first else (_attend, _finish)
        for number, layer in enumerate(self.layers):
            own = [part[number, :cached] for part in self.own]
            x, queries = attend(layer, x, own, self.mask[:cached, None], beams, self.length * self.beams)
            x = finish(layer, x, self._look(number, queries))
        self.length += 1
        logits: Tensor = self.decoding.project(x)[: len(tokens)]
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def _look(self, number: int, queries: Tensor) -> Tensor:
        """What the queries [N, H * d_k] of a layer find in the sources. [N, H * d_v]"""
        ordered = queries if self.order is None else queries[self.order]
        beams, parts, begin = len(queries) // self.rows, [], 0
        for part in self.memory:
            keys, values, mask = part.of(number)
            end = begin + len(keys) * beams
            blocks = ordered[begin:end].view(len(keys), beams, keys.size(1), keys.size(2)).transpose(1, 2)
            parts.append(attention(blocks, keys.transpose(2, 3), values, mask).transpose(1, 2).reshape(end - begin, -1))
            begin = end
        seen = parts[0] if len(parts) == 1 else torch.cat(parts)
        return _widened(seen, len(queries)) if self.back is None else seen[self.back]

    @property
    def cached(self) -> int:
        """How many sentences, copies counted, self-attention takes at once. From `together` on as many as the other products."""
        if self.sentences >= self.together:
            return multiple(self.sentences, self.together)
        return min(multiple(self.sentences, self.enough), self.together)

    @property
    def rows(self) -> int:
        """How many sentences, copies counted, the other products take at once."""
        return max(self.cached, self.together)

    def _reorder(self, parents: Tensor) -> None:
        """Make the caches those of rows that continue the rows `parents`: sentences take the places of ended ones."""
        per_sentence = 1 if self.length == 1 else self.beams
        before, self.sentences = self.sentences, len(parents) // self.beams
        sources = (parents[:: self.beams] // per_sentence).tolist()
        end = self.length * self.beams
        for place, source in enumerate(sources):
            if place != source:
                keys, values = self.own
                keys[:, place, ..., :end] = keys[:, source, ..., :end]
                values[:, place, :, :end] = values[:, source, :, :end]
        if self.length > 1:
            rows = self.mask.view(-1, self.mask.size(2))
            rows[: len(parents), :end] = rows[:, :end].index_select(0, parents.to(rows.device))
        if self.length == 1 or self.sentences < before:
            moved = {source: place for place, source in enumerate(sources)}
            self.memory = [part for part in self.memory if part.follow(moved)]
            self.order, self.back = self._by_length(self.beams)

    def _by_length(self, beams: int) -> tuple[Tensor | None, Tensor | None]:
        """The rows in the order of `memory`, of a sentence `beams`, and where each row is found there. None where they are in it."""
        each = [part.rows() for part in self.memory]
        places = torch.cat(each)
        if len(places) <= self.rows and torch.equal(places[: self.sentences], torch.arange(self.sentences)):
            return None, None
        back, begin = torch.zeros(self.rows, dtype=torch.long), 0  # for copies any row will do
        for part, size in zip(self.memory, map(len, each), strict=True):
            back[part.places] = torch.arange(begin, begin + len(part.places))
            begin += size
        device = self.decoding.device
        return _beams(places, beams).to(device), _beams(back, beams).to(device)

    def _extend_mask(self) -> None:
        """Make room for one more token, which each row descends from."""
        begin, end = self.length * self.beams, (self.length + 1) * self.beams
        if end > self.mask.size(2):
            cached, size = self.cached, _room(self.length + 1) * self.beams
            for place, dim in ((0, 4), (1, 3)):  # one after the other, so that only one is there twice
                self.own[place] = _longer(self.own[place][:, :cached], dim, size, 0)
            self.mask = _longer(self.mask[:cached], 2, size, -math.inf)
        self.mask[:, :, begin:end] = self.newest if self.length else self.newest[0]


def _attend(layer: DecoderLayer, x: Tensor, own: list[Tensor], mask: Tensor, beams: int, begin: int) -> tuple[Tensor, Tensor]:
    """The first sublayer of `layer` for the newest tokens' states x [N, D], and the queries [N, H * d_k] of the second.

    The first rows of x are those of the B cached sentences. Their keys and values go into `own`, keys [B, H, d_k, T * K] and values
    [B, H, T * K, d_v], from `begin` on. `mask` [B, 1, K, T * K] says what a row descends from. Of the first token a sentence has one row,
    `beams` is 1.
    """
    cached = len(own[0])
    count, room = cached * beams, mask.size(2)
    queries, keys, values = (part[:count, :, 0] for part in layer.self_attention.project(x[None]))  # [n, H, …]
    own[0][..., begin : begin + room] = keys.view(cached, beams, *keys.shape[1:]).permute(0, 2, 3, 1)  # [B, H, d_k, K]
    own[1][:, :, begin : begin + room] = values.view(cached, beams, *values.shape[1:]).transpose(1, 2)  # [B, H, K, d_v]
    if begin == 0:
        seen = values.reshape(count, -1)  # there is nothing else to look at
    else:
        blocks = queries.view(cached, beams, *queries.shape[1:]).transpose(1, 2)
        seen = attention(blocks, own[0].transpose(2, 3), own[1], mask).transpose(1, 2).reshape(count, -1)
    x = layer.self_norm(x + layer.self_attention.output(_widened(seen, len(x))))
    return x, layer.cross_attention.query(x)


def _finish(layer: DecoderLayer, x: Tensor, seen: Tensor) -> Tensor:
    """The other two sublayers, from what the second has `seen` in the sources. [N, D]"""
    x = layer.cross_norm(x + layer.cross_attention.output(seen))
    return layer.feed_forward_norm(x + layer.feed_forward(x))  # type: ignore[no-any-return]


@cache
def _compiled() -> list[Callable[..., Any]]:
    """The same by torch.compile, which takes seconds to import and some more at the first calls.

    It does so anew for each kind of shape, one sentence or several, rows enough or not, and each model.
    """
    return [torch.compile(part, **COMPILATION) for part in (_attend, _finish)]


class Ensemble:
    """A `nmt.search.NextLogProbs` of several: the logarithm of the mean of their probabilities."""

    def __init__(self, members: Sequence[NextLogProbs]) -> None:
        self.members = members

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind."""
        each = torch.stack([member(tokens, parents) for member in self.members])
        return each.logsumexp(0) - math.log(len(self.members))


def _room(tokens: int) -> int:
    """How many tokens the caches have room for once they hold so many: an eighth more at most, or a few."""
    return max(LEAST_ROOM, rounded(-(-tokens // LEAST_ROOM)) * LEAST_ROOM)


def _longer(x: Tensor, dim: int, size: int, rest: float) -> Tensor:
    """x with `rest` behind it up to `size` in dimension `dim`."""
    shape = list(x.shape)
    shape[dim] = size
    longer, begin = x.new_empty(shape), x.size(dim)
    longer.narrow(dim, 0, begin).copy_(x)
    longer.narrow(dim, begin, size - begin).fill_(rest)
    return longer


def _widened(x: Tensor, rows: int) -> Tensor:
    """x [n, …] with rows of 0 behind it up to so many."""
    return nn.functional.pad(x, (0, 0, 0, rows - len(x))) if len(x) < rows else x


def _beams(places: Tensor, beams: int) -> Tensor:
    """The rows of the sentences at `places`."""
    return (places[:, None] * beams + torch.arange(beams)).flatten()
