"""The Transformer's decoder one token at a time, with keys and values cached: what beam search calls.

B sentences, K hypotheses of each (beams), N = B * K rows, H heads, T tokens so far, S source tokens, L layers.

A sentence's cache holds the keys and values of all tokens that any of its hypotheses ever had, T * K of them, and a mask says
which of them a row descends from. So when hypotheses are dropped, doubled and reordered, nothing moves but rows of the mask; and one
product of K rows serves a sentence, where K single rows would read as much memory at a fraction of the speed.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from nmt.batches import rounded
from nmt.model import DecoderLayer, attention, padding_mask
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
    """A `nmt.search.NextLogProbs` for the sources src [B, S], with K = `beams`.

    Behind the sentences stand copies of the first, so that one kernel computes the products (`nmt.products`): for attention few or none,
    and as rows of the other products, which nobody sees, some more.
    """

    def __init__(self, decoding: Decoding, src: Tensor, beams: int) -> None:
        self.decoding, self.beams, self.length = decoding, beams, 0
        self.sentences, width = src.shape
        self.enough = max(decoding.enough(width), decoding.enough(2 * beams * beams))
        self.together = max(-(-LEAST_ROWS // beams), self.enough)
        src = _filled(src, decoding.enough(width * width))
        src_mask = padding_mask(src)
        encoded = decoding.encode(src, src_mask)
        self.layers = [layer for layer in decoding.model.decoder if isinstance(layer, DecoderLayer)]
        memory = [[_filled(x[: self.sentences], self.cached) for x in layer.cross_attention.keys_values(encoded)] for layer in self.layers]
        keys, values = (torch.stack(x) for x in zip(*memory, strict=True))
        # A product by keys that stand transposed is several times as fast.
        self.memory = [keys.transpose(3, 4).contiguous(), values]  # keys [L, B, H, d_k, S], values [L, B, H, S, d_v]
        self.src_mask = None if src_mask is None else _filled(src_mask[: self.sentences], self.cached)
        heads = keys.shape[:3]  # [L, B, H]
        # T * K for S, and 0 in the places behind them. Products take the whole: a part they would copy, and each length prepare for.
        self.own = [keys.new_empty(*heads, keys.size(4), 0), keys.new_empty(*heads, 0, values.size(4))]
        self.mask = encoded.new_empty(self.memory[0].size(1), beams, 0)  # 0 for what a row descends from, -inf for the rest
        self.newest = encoded.new_full((beams, beams), -math.inf).fill_diagonal_(0)

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind `tokens` [N], which continue the rows `parents` [N]."""
        first = self.length == 0
        beams = 1 if first else self.beams
        if not first:
            self._reorder(parents)
        self._extend_mask()
        cached = self.cached
        rows = tokens.new_full((max(cached, self.together) * beams,), EOS)
        rows[: len(tokens)] = tokens
        x = self.decoding.embed(rows.to(self.decoding.device)[:, None], self.length, "tgt")[0]  # [N, D]
        src_mask = None if self.src_mask is None else self.src_mask[:cached]
        step = _compiled_step() if self.decoding.compiled and not first else _step
        for number, layer in enumerate(self.layers):
            own, memory = ([part[number, :cached] for part in parts] for parts in (self.own, self.memory))
            x = step(layer, x, own, memory, self.mask[:cached, None], src_mask, beams, self.length * self.beams)
        self.length += 1
        logits: Tensor = self.decoding.project(x)[: len(tokens)]
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    @property
    def cached(self) -> int:
        """How many sentences, copies counted, attention takes at once. From `together` on as many as the other products."""
        if self.sentences >= self.together:
            return _multiple(self.sentences, self.together)
        return min(_multiple(self.sentences, self.enough), self.together)

    def _reorder(self, parents: Tensor) -> None:
        """Make the caches those of rows that continue the rows `parents`: sentences take the places of ended ones."""
        per_sentence = 1 if self.length == 1 else self.beams
        self.sentences = len(parents) // self.beams
        sources = (parents[:: self.beams] // per_sentence).tolist()
        end = self.length * self.beams
        for place, source in enumerate(sources):
            if place != source:
                keys, values = self.own
                keys[:, place, ..., :end] = keys[:, source, ..., :end]
                values[:, place, :, :end] = values[:, source, :, :end]
                for part in self.memory:
                    part[:, place] = part[:, source]
                if self.src_mask is not None:
                    self.src_mask[place] = self.src_mask[source]
        if self.length > 1:
            rows = self.mask.view(-1, self.mask.size(2))
            rows[: len(parents), :end] = rows[:, :end].index_select(0, parents.to(rows.device))

    def _extend_mask(self) -> None:
        """Make room for one more token, which each row descends from."""
        begin, end = self.length * self.beams, (self.length + 1) * self.beams
        if end > self.mask.size(2):
            cached, size = self.cached, _room(self.length + 1) * self.beams
            for place, dim in ((0, 4), (1, 3)):  # one after the other, so that only one is there twice
                self.own[place] = _longer(self.own[place][:, :cached], dim, size, 0)
            self.mask = _longer(self.mask[:cached], 2, size, -math.inf)
        self.mask[:, :, begin:end] = self.newest if self.length else self.newest[0]


def _step(
    layer: DecoderLayer,
    x: Tensor,
    own: list[Tensor],
    memory: list[Tensor],
    mask: Tensor,
    src_mask: Tensor | None,
    beams: int,
    begin: int,
) -> Tensor:
    """What `layer` makes of the newest tokens' states x [N, D], of which the first rows are those of the B cached sentences. [N, D]

    Their keys and values go into `own`, keys [B, H, d_k, T * K] and values [B, H, T * K, d_v], from `begin` on. `mask` [B, 1, K, T * K]
    says what a row descends from; `memory` are keys and values of the sources. Of the first token a sentence has one row, `beams` is 1.
    """
    cached, heads = len(own[0]), layer.self_attention.heads
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
    queries = layer.cross_attention.query(x)[:count].view(cached, beams, heads, -1).transpose(1, 2)
    seen = attention(queries, memory[0].transpose(2, 3), memory[1], src_mask).transpose(1, 2).reshape(count, -1)
    x = layer.cross_norm(x + layer.cross_attention.output(_widened(seen, len(x))))
    return layer.feed_forward_norm(x + layer.feed_forward(x))  # type: ignore[no-any-return]


@cache
def _compiled_step() -> Callable[..., Tensor]:
    """The same by torch.compile, which takes seconds to import and some more at the first call."""
    return torch.compile(_step, dynamic=True, fullgraph=True)


class Ensemble:
    """A `nmt.search.NextLogProbs` of several: the logarithm of the mean of their probabilities."""

    def __init__(self, members: Sequence[NextLogProbs]) -> None:
        self.members = members

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind."""
        each = torch.stack([member(tokens, parents) for member in self.members])
        return each.logsumexp(0) - math.log(len(self.members))


def _multiple(size: int, step: int) -> int:
    """A multiple of `step` that is at least `size`, one of few, because libraries prepare a product for each shape anew."""
    return rounded(-(-size // step)) * step


def _room(tokens: int) -> int:
    """How many tokens the caches have room for once they hold so many: an eighth more at most, or a few."""
    return max(LEAST_ROOM, rounded(-(-tokens // LEAST_ROOM)) * LEAST_ROOM)


def _longer(x: Tensor, dim: int, size: int, rest: float) -> Tensor:
    """x with `rest` behind it up to `size` in dimension `dim`."""
    shape = list(x.shape)
    shape[dim] = size
    longer = x.new_full(shape, rest)
    longer.narrow(dim, 0, x.size(dim)).copy_(x)
    return longer


def _widened(x: Tensor, rows: int) -> Tensor:
    """x [n, …] with rows of 0 behind it up to so many."""
    return nn.functional.pad(x, (0, 0, 0, rows - len(x))) if len(x) < rows else x


def _filled(x: Tensor, step: int) -> Tensor:
    """x [B, …] with copies of its first row up to a multiple of `step` rows."""
    more = _multiple(x.size(0), step) - x.size(0)
    return torch.cat([x, x[:1].expand(more, *x.shape[1:])]) if more else x
