"""The Transformer of Vaswani et al. 2017, section 3, as the paper has it.

B sentences, S source positions, T target positions, D d_model, H heads, K d_k, V d_v (in the attention) or vocabulary.

Post-norm: each sublayer computes LayerNorm(x + Dropout(Sublayer(x))) (§5.4). One matrix embeds both languages and, transposed,
projects before the softmax (§3.4). Dropout acts on each sublayer's output and on embedding + position, nowhere else.

Inside, the positions come first, [S, B, D]: heads are then views of a projection's result, and no product has to copy them.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nmt.config import Config
from nmt.errors import UserError
from nmt.symbols import PAD

Noise = Sequence[Tensor | None]
# How torch.compile takes a part of it: whole, for all sizes, and anew for each kind of input (one sentence or several, masked or not, each
# model) up to so many, where it would give up after eight.
COMPILATION: dict[str, Any] = {"dynamic": True, "fullgraph": True, "recompile_limit": 64}
LEARNED_POSITIONS = 1024  # rows of a learned position table (Table 3, row E); sinusoids have no limit


class ModelConfig(Config):
    """Section `variants.<v>.model`: the shape of the model, Table 3."""

    layers: int = Field(ge=1)
    d_model: int = Field(ge=2, multiple_of=2)
    d_ff: int = Field(ge=1)
    heads: int = Field(ge=1)
    d_k: int = Field(ge=1)
    d_v: int = Field(ge=1)
    dropout: float = Field(ge=0, lt=1)
    positions: Literal["sinusoidal", "learned"]


class Dropout(nn.Module):
    """Inverted dropout by random bits that are drawn elsewhere (`Transformer.noise`), so that this is a function of what it is given."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.cut = round(p * (1 << 16))

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """x, of which `noise`, uniform int16 of the same shape, says what becomes 0. None: all of x stays."""
        if noise is None:
            return x
        keep = torch.ge(noise, self.cut - (1 << 15), out=torch.empty_like(x, requires_grad=False))  # 0 or 1; booleans are slow
        return x * keep.mul_((1 << 16) / ((1 << 16) - self.cut))


class Attention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (§3.2.2).

    What is projected from the same states is projected by one matrix. Its rows stand head by head, within a head queries, keys and values.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.output = nn.Linear(config.heads * config.d_v, config.d_model)

    def split(self, projected: Tensor, *sizes: int) -> list[Tensor]:
        """Cut [T, B, H * sum(sizes)] within each head into views [B, H, T, size]."""
        heads = projected.view(projected.size(0), projected.size(1), self.heads, -1)
        return [part.permute(1, 2, 0, 3) for part in heads.split(sizes, -1)]

    def initialize(self, joined: nn.Linear, *sizes: int) -> None:
        """Xavier uniform for each of the projections that `joined` joins, as if it stood alone; `sizes` as for `split`."""
        for size, rows in zip(sizes, joined.weight.view(self.heads, sum(sizes), -1).split(sizes, 1), strict=True):
            bound = math.sqrt(6 / (joined.in_features + self.heads * size))
            rows.uniform_(-bound, bound)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention for queries [B, H, T, K] over keys [B, H, S, K] and values [B, H, S, V], heads joined. [T, B, D]"""
        heads = attention(queries, keys, values, mask)  # [B, H, T, V]
        return self.output(heads.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]


class SelfAttention(Attention):
    """Queries, keys and values of the same positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.query_key_value = nn.Linear(config.d_model, config.heads * (2 * config.d_k + config.d_v))

    def initialize_joined(self) -> None:
        """Initialize the projections that stand in one matrix."""
        self.initialize(self.query_key_value, self.d_k, self.d_k, self.d_v)

    def project(self, x: Tensor) -> list[Tensor]:
        """Queries [B, H, T, K], keys [B, H, T, K] and values [B, H, T, V] of x [T, B, D]."""
        return self.split(self.query_key_value(x), self.d_k, self.d_k, self.d_v)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from each position of x [T, B, D] to those of x where `mask` allows, as for `attention`. [T, B, D]"""
        queries, keys, values = self.project(x)
        return self.attend(queries, keys, values, mask)


class CrossAttention(Attention):
    """Queries of the target over keys and values of the encoder's output."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.query = nn.Linear(config.d_model, config.heads * config.d_k)
        self.key_value = nn.Linear(config.d_model, config.heads * (config.d_k + config.d_v))

    def initialize_joined(self) -> None:
        """Initialize the projections that stand in one matrix."""
        self.initialize(self.key_value, self.d_k, self.d_v)

    def keys_values(self, memory: Tensor) -> list[Tensor]:
        """Keys [B, H, S, K] and values [B, H, S, V] of memory [S, B, D]."""
        return self.split(self.key_value(memory), self.d_k, self.d_v)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from each position of x [T, B, D] to the keys and values of the memory. [T, B, D]"""
        [queries] = self.split(self.query(x), self.d_k)
        return self.attend(queries, keys, values, mask)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + mask) V (eq. 1); q [B, H, T, K], k [B, H, S, K], v [B, H, S, V].

    `mask`, broadcast to [B, H, T, S], is 0 where attention is allowed and -inf where it is not.
    """
    if q.is_cuda:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.dtype))
    # On a CPU two plain products are twice as fast as PyTorch's fused kernel at the lengths of sentences.
    scores: Tensor = (q @ k.transpose(-1, -2)).mul_(1 / math.sqrt(q.size(-1)))
    if mask is not None:
        scores.add_(mask)
    return scores.softmax(-1) @ v


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, at each position alone (eq. 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).relu())  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward net (§3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.self_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, noise: Noise = (None, None)) -> Tensor:
        """x [S, B, D]; `mask` as `padding_mask` gives it; `noise` for each sublayer's dropout."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, mask), noise[0]))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x), noise[1]))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward net (§3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config)
        self.self_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = CrossAttention(config)
        self.cross_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Sequence[Tensor], memory_mask: Tensor | None, noise: Noise = (None, None, None)
    ) -> Tensor:
        """x [T, B, D]; `mask` as `causal_mask` gives it; `memory` are the keys and values of the encoder's output; `noise` as above."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, mask), noise[0]))
        x = self.cross_norm(x + self.dropout(self.cross_attention(x, *memory, memory_mask), noise[1]))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x), noise[2]))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Encoder, decoder and the one embedding matrix they share."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        if config.positions == "learned":
            self.src_positions = nn.Embedding(LEARNED_POSITIONS, config.d_model)
            self.tgt_positions = nn.Embedding(LEARNED_POSITIONS, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        self.generator: torch.Generator | None = None  # of all dropout masks; None: torch's own
        self.sinusoids: Tensor
        self.register_buffer("sinusoids", sinusoids(256, config.d_model), persistent=False)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Embeddings N(0, 1/d_model), each projection Xavier uniform by itself, biases 0, LayerNorm 1 and 0."""
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, self.config.d_model**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, SelfAttention | CrossAttention):
                module.initialize_joined()

    def noise(self, count: int, tokens: Tensor) -> Noise:
        """Random bits for so many dropouts of states of `tokens` [B, T]: int16 [T, B, D] each, or None where nothing is dropped.

        They are a function of the generator's state, whatever the number of threads; and drawing 64 bits at once is several times as fast
        as torch's Bernoulli on a CPU.
        """
        if not self.training or self.dropout.cut == 0:
            return [None] * count
        shape = count, tokens.size(1), tokens.size(0), self.config.d_model
        numbers = math.prod(shape)
        words = torch.empty((numbers + 3) // 4, dtype=torch.int64, device=tokens.device)
        words.random_(-(1 << 63), None, generator=self.generator)
        return words.view(torch.int16)[:numbers].view(shape).unbind()

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Teacher-forced states [B, T, D] of the decoder: `logits` of state t predict the token behind tgt[:, t].

        src [B, S] and tgt [B, T] are padded at the end; tgt begins with the begin symbol.
        """
        mask = padding_mask(src)
        memory = self.encode(src, mask)
        x = self.embed(tgt, 0, "tgt")
        causal = causal_mask(x)
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            x = layer(x, causal, layer.cross_attention.keys_values(memory), mask, self.noise(3, tgt))
        return x.transpose(0, 1)

    def encode(self, src: Tensor, mask: Tensor | None) -> Tensor:
        """The encoder's output, positions first, [S, B, D] for src [B, S]; `mask` as `padding_mask` gives it."""
        x = self.embed(src, 0, "src")
        for layer in self.encoder:
            x = layer(x, mask, self.noise(2, src))
        return x

    def embed(self, tokens: Tensor, position: int, side: Literal["src", "tgt"]) -> Tensor:
        """Embedding times sqrt(d_model), plus positions from `position` on, with dropout. [B, T] -> [T, B, D]"""
        positions = self._positions(position + tokens.size(1), side)[position:, None]  # [T, 1, D]
        embedded = torch.add(positions, self.embedding(tokens.t()), alpha=math.sqrt(self.config.d_model))
        return self.dropout(embedded, *self.noise(1, tokens))  # type: ignore[no-any-return]

    def logits(self, states: Tensor) -> Tensor:
        """Scores [..., vocabulary] of the next token, by the transposed embedding matrix (§3.4)."""
        return nn.functional.linear(states, self.embedding.weight)

    def _positions(self, end: int, side: Literal["src", "tgt"]) -> Tensor:
        if self.config.positions == "learned":
            if end > LEARNED_POSITIONS:
                raise PositionError(
                    f"a sentence of {end} tokens is longer than the {LEARNED_POSITIONS} learned positions: "
                    "shorten it, lower cleaning.max_words, or set model.positions to sinusoidal"
                )
            table = self.src_positions if side == "src" else self.tgt_positions
            return table.weight[:end]
        if end > self.sinusoids.size(0):
            longer = sinusoids(2 * end, self.config.d_model)
            self.sinusoids = longer.to(self.sinusoids)
        return self.sinusoids[:end]


class PositionError(UserError):
    """A sentence reaches beyond the table of learned positions."""


def padding_mask(src: Tensor) -> Tensor | None:
    """0 at the tokens of src [B, S] and -inf at its padding, as [B, 1, 1, S]; None where there is no padding (on a CPU)."""
    padding = src == PAD
    if not src.is_cuda and not bool(padding.any()):
        return None
    return torch.zeros(src.shape, device=src.device).masked_fill_(padding, -math.inf)[:, None, None]


def causal_mask(x: Tensor) -> Tensor:
    """0 where a position of x [T, B, D] may look, at itself and before, and -inf behind it. [T, T]"""
    return x.new_full((x.size(0), x.size(0)), -math.inf).triu_(1)


def sinusoids(positions: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same (§3.5). [positions, d_model]"""
    rates = 10000.0 ** -(torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()
