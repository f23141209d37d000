"""The Transformer's decoder one token at a time, with keys and values cached: what beam search calls.

B sentences, K hypotheses of each (beams), N = B * K rows, H heads, T tokens so far, S source tokens, L layers.

A sentence's cache holds the keys and values of all tokens that any of its hypotheses ever had, T * K of them, and a mask says
which of them a row descends from. So when hypotheses are dropped, doubled and reordered, nothing moves but rows of the mask; and one
product of K rows serves a sentence, where K single rows would read as much memory at a fraction of the speed.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.batches import rounded
from nmt.model import DecoderLayer, attention, padding_mask
from nmt.products import LEAST_ROWS, Decoding
from nmt.search import NextLogProbs
from nmt.symbols import EOS


class CachedDecoder:
    """A `nmt.search.NextLogProbs` for the sources src [B, S], with K = `beams`. Its caches have room for `room` tokens, then for more.

    Behind the sentences stand copies of the first, whose rows nobody sees, so that one kernel computes the products (`nmt.products`).
    """

    def __init__(self, decoding: Decoding, src: Tensor, beams: int, room: int = 16) -> None:
        self.decoding, self.beams, self.length = decoding, beams, 0
        self.sentences, width = src.shape
        self.together = max(-(-LEAST_ROWS // beams), decoding.enough(width), decoding.enough(2 * beams * beams))
        src = _filled(src, decoding.enough(width * width))
        src_mask = padding_mask(src)
        encoded = decoding.encode(src, src_mask)
        self.layers = [layer for layer in decoding.model.decoder if isinstance(layer, DecoderLayer)]
        memory = [[_filled(x, self.together) for x in layer.cross_attention.keys_values(encoded)] for layer in self.layers]
        keys, values = (torch.stack(x) for x in zip(*memory, strict=True))
        # A product by keys that stand transposed is several times as fast.
        self.memory = [keys.transpose(3, 4).contiguous(), values]  # keys [L, B, H, d_k, S], values [L, B, H, S, d_v]
        self.src_mask = None if src_mask is None else _filled(src_mask, self.together)
        heads = keys.shape[:3]  # [L, B, H]
        self.own = [keys.new_empty(*heads, keys.size(4), room * beams), keys.new_empty(*heads, room * beams, values.size(4))]  # T * K for S
        self.mask = encoded.new_empty(self.memory[0].size(1), beams, room * beams)  # 0 for what a row descends from, -inf for the rest
        self.newest = encoded.new_full((beams, beams), -math.inf).fill_diagonal_(0)

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind `tokens` [N], which continue the rows `parents` [N]."""
        first = self.length == 0
        beams = 1 if first else self.beams
        if not first:
            self._reorder(parents)
        self._extend_mask()
        filled = _multiple(self.sentences, self.together)
        rows = tokens.new_full((filled * beams,), EOS)
        rows[: len(tokens)] = tokens
        x = self.decoding.embed(rows.to(self.decoding.device)[:, None], self.length, "tgt")[0]  # [N, D]
        src_mask = None if self.src_mask is None else self.src_mask[:filled]
        for number, layer in enumerate(self.layers):
            seen = self._attend_to_own(number, *(part[:, :, 0] for part in layer.self_attention.project(x[None])))
            x = layer.self_norm(x + layer.self_attention.output(seen))
            queries = layer.cross_attention.query(x).view(filled, beams, layer.cross_attention.heads, -1).transpose(1, 2)
            keys, values = (part[number, :filled] for part in self.memory)
            heads = attention(queries, keys.transpose(2, 3), values, src_mask)  # [B, H, K, d_v]
            x = layer.cross_norm(x + layer.cross_attention.output(heads.transpose(1, 2).reshape(len(x), -1)))
            x = layer.feed_forward_norm(x + layer.feed_forward(x))
        self.length += 1
        logits: Tensor = self.decoding.project(x)[: len(tokens)]
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def _attend_to_own(self, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the newest tokens' queries [N, H, d_k] over those that they descend from, with them, heads joined. [N, H * d_v]"""
        filled, begin, end = _multiple(self.sentences, self.together), self.length * self.beams, (self.length + 1) * self.beams
        all_keys, all_values = (cache[number, :filled] for cache in self.own)
        # Of the first token there is one row, for all beams.
        all_keys[..., begin:end] = keys.view(filled, -1, *keys.shape[1:]).permute(0, 2, 3, 1)  # [B, H, d_k, K]
        all_values[:, :, begin:end] = values.view(filled, -1, *values.shape[1:]).transpose(1, 2)  # [B, H, K, d_v]
        if self.length == 0:
            return values.reshape(len(values), -1)  # there is nothing else to look at
        blocks = queries.view(filled, self.beams, *queries.shape[1:]).transpose(1, 2)
        heads = attention(blocks, all_keys[..., :end].transpose(2, 3), all_values[:, :, :end], self.mask[:filled, None, :, :end])
        return heads.transpose(1, 2).reshape(len(queries), -1)

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
            filled = _multiple(self.sentences, self.together)
            self.own = [_doubled(x[:, :filled], dim) for x, dim in zip(self.own, (4, 3), strict=True)]
            self.mask = _doubled(self.mask[:filled], 2)
        self.mask[:, :, begin:end] = self.newest if self.length else self.newest[0]


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


def _doubled(x: Tensor, dim: int) -> Tensor:
    """x with as much room behind it in dimension `dim`."""
    return torch.cat([x, torch.empty_like(x)], dim)


def _filled(x: Tensor, step: int) -> Tensor:
    """x [B, …] with copies of its first row up to a multiple of `step` rows."""
    more = _multiple(x.size(0), step) - x.size(0)
    return torch.cat([x, x[:1].expand(more, *x.shape[1:])]) if more else x
