"""The Transformer's decoder one token at a time, with keys and values cached: what beam search calls.

N rows (hypotheses), H heads, T tokens so far, S source tokens, B sentences.
"""

import torch
from torch import Tensor

from nmt.model import DecoderLayer, Transformer, padding_mask

FIRST_CAPACITY = 16  # tokens for which a cache has room at first


class CachedDecoder:
    """A `nmt.search.NextLogProbs` for the sources src [B, S]. Keys and values of the sources are computed once a sentence, not a beam."""

    def __init__(self, model: Transformer, src: Tensor) -> None:
        self.model, self.length = model, 0
        self.mask = padding_mask(src)
        memory = model.encode(src, self.mask)
        self.layers = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
        self.memory = [layer.cross_attention.keys_values(memory) for layer in self.layers]  # each [B, H, S, K]
        self.sentences = torch.arange(src.size(0))  # of each row
        self.own: list[tuple[Tensor, Tensor]] = []  # each [N, H, capacity, K]

    def __call__(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Log probabilities [N, V] of the token behind `tokens` [N], which continue the rows `parents` [N]."""
        device = self.model.embedding.weight.device
        self._reorder(parents, device)
        rows = len(tokens)
        x = self.model.embed(tokens.to(device)[:, None], self.length, "tgt")  # [1, N, D]
        self.length += 1
        for number, layer in enumerate(self.layers):
            queries, *newest = layer.self_attention.project(x)
            x = layer.self_norm(x + layer.self_attention.attend(queries, *self._append(number, *newest), None))
            # Beams of one sentence attend to the same memory: they are its queries, one behind the other.
            sentences = self.memory[number][0].size(0)
            beams = x.view(sentences, rows // sentences, -1).transpose(0, 1)  # [beams, B, D]
            seen = layer.cross_attention(beams.contiguous(), *self.memory[number], self.mask).transpose(0, 1)  # [B, beams, D]
            x = layer.cross_norm(x + seen.reshape(x.shape))
            x = layer.feed_forward_norm(x + layer.feed_forward(x))
        logits = self.model.logits(x[0])
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def _reorder(self, parents: Tensor, device: torch.device) -> None:
        rows = len(self.sentences)
        if torch.equal(parents, torch.arange(rows)):
            return
        self.own = [(k.index_select(0, parents.to(device)), v.index_select(0, parents.to(device))) for k, v in self.own]
        self.sentences = self.sentences[parents]
        kept = self.sentences.unique_consecutive()
        if len(kept) < self.memory[0][0].size(0):
            self.memory = [[k.index_select(0, kept.to(device)), v.index_select(0, kept.to(device))] for k, v in self.memory]
            self.mask = None if self.mask is None else self.mask.index_select(0, kept.to(device))
            self.sentences = torch.arange(len(kept)).repeat_interleave(len(parents) // len(kept))

    def _append(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put key and value [N, H, 1, K] of the newest token into the cache; returns those of all tokens [N, H, T, K]."""
        if number == len(self.own):
            self.own.append((_room(key, FIRST_CAPACITY), _room(value, FIRST_CAPACITY)))
        keys, values = self.own[number]
        if self.length > keys.size(2):
            keys, values = (torch.cat([x, torch.empty_like(x)], 2) for x in (keys, values))
            self.own[number] = keys, values
        keys[:, :, self.length - 1 : self.length] = key
        values[:, :, self.length - 1 : self.length] = value
        return keys[:, :, : self.length], values[:, :, : self.length]


def _room(x: Tensor, capacity: int) -> Tensor:
    """An empty cache for tensors like x [N, H, 1, K]."""
    return x.new_empty(x.size(0), x.size(1), capacity, x.size(3))
