"""The Transformer of Vaswani et al. 2017, section 3, as the paper has it.

B sentences, S source positions, T target positions, D d_model, H heads, K d_k, V d_v (in the attention) or vocabulary.

Post-norm: each sublayer computes LayerNorm(x + Dropout(Sublayer(x))) (§5.4). One matrix embeds both languages and, transposed,
projects before the softmax (§3.4). Dropout acts on each sublayer's output and on embedding + position, nowhere else.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nmt.config import Config
from nmt.errors import UserError
from nmt.symbols import PAD

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
    """Inverted dropout whose mask comes from a generator of its own, 16 random bits an element.

    A mask is then a function of the generator's seed and the module's place in the model, whatever the number of threads;
    and drawing 64 bits at once is several times as fast as torch's Bernoulli on a CPU.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.cut = round(p * (1 << 16))
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.cut == 0:
            return x
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        words.random_(-(1 << 63), None, generator=self.generator)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = (bits >= self.cut - (1 << 15)).to(x.dtype)
        return x * keep.mul_((1 << 16) / ((1 << 16) - self.cut))


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (§3.2.2).

    The projections of all heads stand in one matrix each, those of keys and values in one together.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.d_k, self.d_v = config.heads, config.d_k, config.d_v
        self.query = nn.Linear(config.d_model, config.heads * config.d_k)
        self.key_value = nn.Linear(config.d_model, config.heads * (config.d_k + config.d_v))
        self.output = nn.Linear(config.heads * config.d_v, config.d_model)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from each position of x [B, T, D] to memory [B, S, D] where `mask` (boolean, broadcast to [B, H, T, S]) allows."""
        return self.attend(x, *self.keys_values(memory), mask)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, H, S, K] and values [B, H, S, V] of memory [B, S, D]."""
        keys, values = self.key_value(memory).split([self.heads * self.d_k, self.heads * self.d_v], -1)
        return self._split_heads(keys), self._split_heads(values)

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of x [B, T, D] over keys and values already projected. [B, T, D]"""
        heads = attention(self._split_heads(self.query(x)), keys, values, mask)  # [B, H, T, V]
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)  # [B, T, H * K] -> [B, H, T, K]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V (eq. 1); q [B, H, T, K], k [B, H, S, K], v [B, H, S, V]; where `mask` is false the weight is 0."""
    if q.is_cuda:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # On a CPU two plain products are twice as fast as PyTorch's fused kernel at the lengths of sentences.
    scores: Tensor = (q / math.sqrt(q.size(-1))) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
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
        self.self_attention = MultiHeadAttention(config)
        self.self_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, S, D]; mask [B, 1, 1, S] is false at padding."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, x, mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward net (§3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, own: tuple[Tensor, Tensor], own_mask: Tensor | None, memory: tuple[Tensor, Tensor], memory_mask: Tensor | None
    ) -> Tensor:
        """x [B, T, D]; `own` and `memory` are the keys and values of the target so far and of the encoder's output."""
        x = self.self_norm(x + self.dropout(self.self_attention.attend(x, *own, own_mask)))
        x = self.cross_norm(x + self.dropout(self.cross_attention.attend(x, *memory, memory_mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


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
        self.sinusoids: Tensor
        self.register_buffer("sinusoids", sinusoids(256, config.d_model), persistent=False)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Embeddings N(0, 1/d_model), each projection Xavier uniform by itself, biases 0, LayerNorm 1 and 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, self.config.d_model**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
                sizes = [self.config.heads * self.config.d_k, self.config.heads * self.config.d_v]
                parts = module.weight.split(sizes) if name.endswith("key_value") else [module.weight]
                for part in parts:
                    nn.init.xavier_uniform_(part)

    def use_generator(self, generator: torch.Generator) -> None:
        """Draw all dropout masks from `generator`."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.generator = generator

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Teacher-forced states [B, T, D] of the decoder: `logits` of state t predict the token behind tgt[:, t].

        src [B, S] and tgt [B, T] are padded at the end; tgt begins with the begin symbol.
        """
        mask = padding_mask(src)
        memory = self.encode(src, mask)
        x = self.embed(tgt, 0, "tgt")
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device).tril_()
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            x = layer(x, layer.self_attention.keys_values(x), causal, layer.cross_attention.keys_values(memory), mask)
        return x

    def encode(self, src: Tensor, mask: Tensor | None) -> Tensor:
        """The encoder's output [B, S, D] for src [B, S]; `mask` as `padding_mask` gives it."""
        x = self.embed(src, 0, "src")
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def embed(self, tokens: Tensor, position: int, side: Literal["src", "tgt"]) -> Tensor:
        """Embedding times sqrt(d_model), plus positions from `position` on, with dropout. [B, T] -> [B, T, D]"""
        end = position + tokens.size(1)
        x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        return self.dropout(x + self._positions(end, side)[position:])  # type: ignore[no-any-return]

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
    """True at the tokens of src [B, S] and false at its padding, as [B, 1, 1, S]; None where there is no padding (on a CPU)."""
    mask = src != PAD
    if not src.is_cuda and bool(mask.all()):
        return None
    return mask[:, None, None, :]


def sinusoids(positions: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same (§3.5). [positions, d_model]"""
    rates = 10000.0 ** -(torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()
