"""The model held against PyTorch's own layers, plain numpy, and the numbers of the paper (places in it are named §)."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from torch import Tensor, nn

import nmt.model
from nmt.model import (
    LEARNED_POSITIONS,
    Attention,
    CrossAttention,
    DecoderLayer,
    Dropout,
    EncoderLayer,
    ModelConfig,
    PositionError,
    SelfAttention,
    Transformer,
    attention,
    causal_mask,
    padding_mask,
    sinusoids,
)
from nmt.symbols import PAD

VARIANTS = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "params.yaml").read_text("utf-8"))["variants"]
VOCABULARY = 23
SQUARE = ModelConfig(layers=2, d_model=12, d_ff=20, heads=3, d_k=4, d_v=4, dropout=0.0, positions="sinusoidal")
ODD = SQUARE.model_copy(update={"d_k": 5, "d_v": 2})  # heads * d_k, heads * d_v and d_model all differ
SRC = torch.tensor([[5, 9, 13, 4, 3], [7, 6, 3, PAD, PAD]])
TGT = torch.tensor([[2, 8, 8, 19], [2, 11, PAD, PAD]])


def built(config: ModelConfig, seed: int = 0) -> Transformer:
    """A float64 model whose biases and norms are random too, so that none of them can be left out unseen."""
    torch.manual_seed(seed)
    model = Transformer(config, VOCABULARY).double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 4)
    return model


class Replay(nn.Module):
    """In the place of a dropout layer: multiplies with the masks of another model's, in the order in which they were drawn."""

    def __init__(self, masks: Iterator[Tensor]) -> None:
        super().__init__()
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.masks).transpose(0, 1)


def nothing() -> Iterator[Tensor]:
    while True:
        yield torch.ones(1, 1)


def projections(layer: Attention, what: Callable[[Tensor], Any] = lambda weight: weight) -> list[tuple[Tensor, Tensor]]:
    """W^Q, W^K and W^V with their biases, each [H, K, D] and [H, K], or with `what` their gradients."""
    if isinstance(layer, SelfAttention):
        joint = [(layer.query_key_value, [layer.d_k, layer.d_k, layer.d_v])]
    else:
        assert isinstance(layer, CrossAttention)
        joint = [(layer.query, [layer.d_k]), (layer.key_value, [layer.d_k, layer.d_v])]
    found: list[tuple[Tensor, Tensor]] = []
    for module, widths in joint:
        weights = what(module.weight).view(layer.heads, sum(widths), -1).split(widths, 1)
        biases = what(module.bias).view(layer.heads, sum(widths)).split(widths, 1)
        found += zip(weights, biases, strict=True)
    return found


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention, what: Callable[[Tensor], Any] = lambda weight: weight) -> None:
    """Weights, or with `what` their gradients, of our projections into the places that PyTorch's have for them."""
    weights, biases = zip(*projections(ours, what), strict=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([weight.flatten(0, 1) for weight in weights]))
        theirs.in_proj_bias.copy_(torch.cat([bias.flatten() for bias in biases]))
        theirs.out_proj.weight.copy_(what(ours.output.weight))
        theirs.out_proj.bias.copy_(what(ours.output.bias))


def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: Any, what: Callable[[Tensor], Any] = lambda weight: weight) -> None:
    """The same for a whole layer."""
    copy_attention(ours.self_attention, theirs.self_attn, what)
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (ours.feed_forward.inner, theirs.linear1),
        (ours.feed_forward.outer, theirs.linear2),
        (ours.self_norm, theirs.norm1),
    ]
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn, what)
        pairs += [(ours.cross_norm, theirs.norm2), (ours.feed_forward_norm, theirs.norm3)]
    else:
        pairs += [(ours.feed_forward_norm, theirs.norm2)]
    with torch.no_grad():
        for source, target in pairs:
            for name, weight in target.named_parameters():
                weight.copy_(what(source.get_parameter(name)))


def pytorch_layer(ours: EncoderLayer | DecoderLayer, masks: Iterator[Tensor]) -> Any:
    """PyTorch's layer of the same kind with our weights; dropout on the outputs of sublayers only, its masks taken from `masks`."""
    kind = nn.TransformerDecoderLayer if isinstance(ours, DecoderLayer) else nn.TransformerEncoderLayer
    config = SQUARE
    theirs = kind(config.d_model, config.heads, config.d_ff, dropout=0.0, batch_first=True, norm_first=False).double()
    copy_layer(ours, theirs)
    for place in ("dropout1", "dropout2", "dropout3"):
        if hasattr(theirs, place):
            setattr(theirs, place, Replay(masks))
    return theirs


class PyTorchTransformer(nn.Module):
    """Encoder and decoder of PyTorch's layers with the weights of `ours`, and an embedding matrix for each of its three uses."""

    def __init__(self, ours: Transformer, masks: Iterator[Tensor]) -> None:
        super().__init__()
        self.embeddings = nn.ParameterDict({use: ours.embedding.weight.detach().clone() for use in ("src", "tgt", "logits")})
        self.encoder = nn.ModuleList(pytorch_layer(layer, masks) for layer in ours.encoder)
        self.decoder = nn.ModuleList(pytorch_layer(layer, masks) for layer in ours.decoder)
        self.dropout = Replay(masks)
        self.positions = ours.sinusoids

    def forward(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, Tensor]:
        """States of the decoder and logits."""
        padding = src == PAD
        memory = self.embedded(src, "src")
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        x = self.embedded(tgt, "tgt")
        future = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=future, memory_key_padding_mask=padding)
        return x, x @ self.embeddings["logits"].T

    def embedded(self, tokens: Tensor, use: str) -> Tensor:
        return self.dropout(self.embeddings[use][tokens] * math.sqrt(SQUARE.d_model) + self.positions[: tokens.size(1)])


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# --- §3.1, §3.2: layers ---------------------------------------------------------------------------------------------------------------


def test_the_encoder_layer_is_pytorchs_post_norm_layer_forward_and_backward() -> None:
    layer = built(SQUARE).encoder[0]
    assert isinstance(layer, EncoderLayer)
    theirs, gradients = pytorch_layer(layer, nothing()), pytorch_layer(layer, nothing())
    x = torch.randn(2, 5, SQUARE.d_model, dtype=torch.float64)
    ours_x, their_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = layer(ours_x.transpose(0, 1), padding_mask(SRC)).transpose(0, 1), theirs(their_x, src_key_padding_mask=SRC == PAD)
    assert_equal(found, expected)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    copy_layer(layer, gradients, lambda weight: weight.grad)
    assert_equal(ours_x.grad, their_x.grad)
    for (name, weight), gradient in zip(theirs.named_parameters(), gradients.parameters(), strict=True):
        assert weight.grad.abs().sum() > 0, name
        assert_equal(gradient, weight.grad)


def test_the_decoder_layer_is_pytorchs_post_norm_layer_forward_and_backward() -> None:
    layer = built(SQUARE).decoder[0]
    assert isinstance(layer, DecoderLayer)
    theirs, gradients = pytorch_layer(layer, nothing()), pytorch_layer(layer, nothing())
    x, memory = torch.randn(2, 4, SQUARE.d_model, dtype=torch.float64), torch.randn(2, 5, SQUARE.d_model, dtype=torch.float64)
    ours, others = [[t.clone().requires_grad_() for t in (x, memory)] for _ in range(2)]
    first = [t.transpose(0, 1) for t in ours]  # positions first
    seen = layer.cross_attention.keys_values(first[1])
    found = layer(first[0], causal_mask(first[0]), seen, padding_mask(SRC)).transpose(0, 1)
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = theirs(*others, tgt_mask=future, memory_key_padding_mask=SRC == PAD)
    assert_equal(found, expected)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    copy_layer(layer, gradients, lambda weight: weight.grad)
    for found_input, expected_input in zip(ours, others, strict=True):
        assert_equal(found_input.grad, expected_input.grad)
    for (name, weight), gradient in zip(theirs.named_parameters(), gradients.parameters(), strict=True):
        assert weight.grad.abs().sum() > 0, name
        assert_equal(gradient, weight.grad)


def test_the_whole_model_is_pytorchs_and_its_one_embedding_gets_the_gradients_of_all_three_uses() -> None:
    ours = built(SQUARE)
    theirs = PyTorchTransformer(ours, nothing())
    states = ours(SRC, TGT)
    expected_states, expected_logits = theirs(SRC, TGT)
    assert_equal(states, expected_states)
    assert_equal(ours.logits(states), expected_logits)
    weights = torch.randn_like(expected_logits)
    (ours.logits(states) * weights).sum().backward()
    (expected_logits * weights).sum().backward()
    gradients = [theirs.embeddings[use].grad for use in ("src", "tgt", "logits")]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert_equal(ours.embedding.weight.grad, sum(gradients))
    for mine, other in zip([*ours.encoder, *ours.decoder], [*theirs.encoder, *theirs.decoder], strict=True):
        gradient = pytorch_layer(mine, nothing())
        copy_layer(mine, gradient, lambda weight: weight.grad)
        for expected, found in zip(other.parameters(), gradient.parameters(), strict=True):
            assert_equal(found, expected.grad)


def numpy_attention(layer: Attention, x: Tensor, memory: Tensor, allowed: Any) -> Any:
    """§3.2.2 head by head: Concat(softmax(Q K^T / sqrt(d_k)) V) W^O, batch first."""
    (q_w, q_b), (k_w, k_b), (v_w, v_b) = [[part.detach().numpy() for part in pair] for pair in projections(layer)]
    o_w, o_b = layer.output.weight.detach().numpy(), layer.output.bias.detach().numpy()
    heads = []
    for head in range(layer.heads):
        q = x.numpy() @ q_w[head].T + q_b[head]
        k = memory.numpy() @ k_w[head].T + k_b[head]
        v = memory.numpy() @ v_w[head].T + v_b[head]
        weights = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(layer.d_k)) * allowed
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    return np.concatenate(heads, -1) @ o_w.T + o_b


@pytest.mark.parametrize("config", [SQUARE, ODD], ids=["d_k = d_v = d_model / heads", "d_k, d_v and d_model / heads differ"])
def test_attention_is_the_papers_formula_head_by_head(config: ModelConfig) -> None:
    model = built(config)
    x, memory = torch.randn(2, 4, config.d_model, dtype=torch.float64), torch.randn(2, 5, config.d_model, dtype=torch.float64)

    def some(positions: int) -> Tensor:
        allowed = torch.rand(2, 1, 4, positions) < 0.6
        allowed[..., 0] = True
        return allowed

    layer, cross = model.encoder[0].self_attention, model.decoder[0].cross_attention
    assert isinstance(layer, SelfAttention) and isinstance(cross, CrossAttention)
    first, keys_values = x.transpose(0, 1), cross.keys_values(memory.transpose(0, 1))
    for allowed, seen in [(None, None), (some(4), some(5))]:
        masks = [None if part is None else torch.zeros(part.shape).masked_fill_(~part, -math.inf) for part in (allowed, seen)]
        factors = [1.0 if part is None else part[:, 0].numpy() for part in (allowed, seen)]
        expected = numpy_attention(layer, x, x, factors[0])
        np.testing.assert_allclose(layer(first, masks[0]).transpose(0, 1).detach(), expected, rtol=1e-10, atol=1e-10)
        expected = numpy_attention(cross, x, memory, factors[1])
        np.testing.assert_allclose(cross(first, *keys_values, masks[1]).transpose(0, 1).detach(), expected, rtol=1e-10, atol=1e-10)


def test_a_masked_weight_is_exactly_zero() -> None:
    q, k, v = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 5, 3), torch.eye(5).expand(1, 2, 5, 5)  # so that the weights come out
    mask = torch.ones(4, 5, dtype=torch.bool).tril()
    weights = attention(q, k, v, torch.zeros(4, 5).masked_fill_(~mask, -math.inf))
    assert (weights[..., ~mask] == 0).all() and (weights[..., mask] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 4))


def test_a_product_of_random_queries_and_keys_has_variance_d_k_and_one_after_scaling() -> None:
    """§3.2.1, footnote 4: of components that are independent with mean 0 and variance 1."""
    for d_k in (4, 64, 512):
        q, k = torch.randn(2, 20_000, d_k, generator=torch.Generator().manual_seed(d_k), dtype=torch.float64)
        products = (q * k).sum(-1)
        # A variance estimated from n draws spreads by sqrt((2 + excess kurtosis) / n) of itself; the kurtosis here is 6 / d_k.
        assert products.var().item() == pytest.approx(d_k, rel=4 * math.sqrt((2 + 6 / d_k) / len(q)))
        # What `attention` puts into the softmax: with a key of zeros beside k, the logs of the weights differ by it.
        keys = torch.stack([torch.zeros_like(k), k], 1)[:, None]  # [N, 1, 2, K]
        weights = attention(q[:, None, None], keys, torch.eye(2).double().expand(len(q), 1, 2, 2), None)[:, 0, 0]
        scaled = weights[:, 1].log() - weights[:, 0].log()
        assert_equal(scaled, products / math.sqrt(d_k))
        assert scaled.var().item() == pytest.approx(1, rel=4 * math.sqrt((2 + 6 / d_k) / len(q)))


def test_the_gradient_of_the_weights_is_the_jacobian_of_the_softmax() -> None:
    """§3.2.1: da_i / dz_j = a_i (δ_ij - a_j), which vanishes where one weight is near 1."""
    torch.manual_seed(2)
    n, d_k = 6, 4
    q, k = torch.randn(1, 1, 1, d_k, dtype=torch.float64), torch.randn(1, 1, n, d_k, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64)[None, None]

    def weights(mask: Tensor) -> Tensor:  # a mask is added to z
        return attention(q, k, eye, mask)[0, 0, 0]

    for spread in (0.0, 3.0, 60.0):
        mask = spread * torch.arange(n, dtype=torch.float64)
        a = weights(mask)
        found = torch.autograd.functional.jacobian(weights, mask)
        assert_equal(found, a.diag() - a[:, None] * a)
    assert found.abs().max() < 1e-20


def test_the_feed_forward_net_sees_one_position_at_a_time() -> None:
    """§3.3: "applied to each position separately and identically"."""
    net = built(SQUARE).encoder[0].feed_forward
    x = torch.randn(5, 2, SQUARE.d_model, dtype=torch.float64, requires_grad=True)
    y = net(x)
    assert_equal(y[[3, 0, 4, 1, 2]], net(x[[3, 0, 4, 1, 2]]))
    [gradient] = torch.autograd.grad(y[2, 1].sum(), x)
    assert gradient[2, 1].all()
    gradient[2, 1] = 0
    assert not gradient.any()


# --- §3.2.3: what a position sees -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SQUARE, ODD], ids=["square", "odd"])
def test_no_state_changes_with_a_later_target_token(config: ModelConfig) -> None:
    model = built(config)
    tgt = torch.tensor([[2, 8, 5, 19, 7, 6]])
    before = model(SRC[:1], tgt)
    for position in range(1, 6):
        changed = tgt.clone()
        changed[:, position] += 1
        after = model(SRC[:1], changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert (after[:, position:] != before[:, position:]).any(-1).all()


def test_padding_changes_nothing() -> None:
    model = built(ODD)
    src, tgt = SRC[1:, :3], TGT[1:, :2]
    alone = model(src, tgt)
    wide_src, wide_tgt = (torch.cat([x, torch.full((1, 4), PAD)], 1) for x in (src, tgt))
    assert_equal(model(wide_src, tgt), alone)
    assert_equal(model(src, wide_tgt)[:, :2], alone)
    assert_equal(model(wide_src, wide_tgt)[:, :2], alone)
    assert_equal(model(SRC, TGT)[1:, :2], alone)


# --- §3.4, §3.5: embedding and positions ----------------------------------------------------------------------------------------------


def test_one_matrix_embeds_both_languages_and_projects() -> None:
    model = Transformer(SQUARE, VOCABULARY)
    assert [name for name, weight in model.state_dict().items() if VOCABULARY in weight.shape] == ["embedding.weight"]
    assert_equal(model.logits(torch.eye(SQUARE.d_model)), model.embedding.weight.T)


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_the_embedding_is_multiplied_by_the_root_of_d_model(side: Any) -> None:
    model = built(SQUARE)
    expected = model.embedding.weight[SRC] * math.sqrt(SQUARE.d_model) + model.sinusoids[3:8]
    assert_equal(model.embed(SRC, 3, side).transpose(0, 1), expected)


@pytest.mark.parametrize("d_model", [2, 12, 512])
def test_positions_are_the_papers_sinusoids(d_model: int) -> None:
    expected = np.empty((300, d_model))
    for i in range(d_model // 2):
        angle = np.arange(300) / 10000 ** (2 * i / d_model)
        expected[:, 2 * i], expected[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(sinusoids(300, d_model), expected, atol=1e-7)


def test_wavelengths_are_a_geometric_progression_from_2_pi_to_10000_times_2_pi() -> None:
    d_model = 512
    first = sinusoids(2, d_model)[1].double()
    wavelengths = 2 * math.pi / torch.atan2(first[0::2], first[1::2])
    ratios = wavelengths[1:] / wavelengths[:-1]
    torch.testing.assert_close(wavelengths[0], torch.tensor(2 * math.pi).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(ratios, torch.full_like(ratios, 10000 ** (2 / d_model)), rtol=1e-6, atol=0)
    # The progression's next member, which has no dimension any more, would be the end of the paper's range.
    torch.testing.assert_close(wavelengths[-1] * ratios[-1], torch.tensor(10000 * 2 * math.pi).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("k", [1, 17, 200])
def test_a_position_k_further_is_a_linear_function_of_the_position_the_same_for_all(k: int) -> None:
    d_model = 64
    table = sinusoids(1000, d_model).double()
    linear = torch.zeros(d_model, d_model).double()
    for i in range(0, d_model, 2):
        turn = k / 10000 ** (i / d_model)
        linear[i : i + 2, i : i + 2] = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    torch.testing.assert_close(table[k:], table[:-k] @ linear.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_without_positions_the_encoder_is_permutation_equivariant_and_with_them_it_is_not(positions: str) -> None:
    """§3.5: "in order for the model to make use of the order of the sequence"."""
    model, order = built(SQUARE.model_copy(update={"positions": positions})), torch.tensor([3, 0, 4, 1, 2])
    with_positions, permuted = model.encode(SRC[:1], None)[order], model.encode(SRC[:1, order], None)
    assert (with_positions - permuted).abs().max() > 0.01
    model.sinusoids.zero_()
    if positions == "learned":
        nn.init.zeros_(model.src_positions.weight)
    assert_equal(model.encode(SRC[:1], None)[order], model.encode(SRC[:1, order], None))


def test_sinusoids_have_no_limit_and_keep_their_type() -> None:
    model = built(SQUARE)
    long = torch.full((1, 3000), 5)
    expected = model.embedding.weight[5] * math.sqrt(SQUARE.d_model) + sinusoids(3000, SQUARE.d_model).double()
    with torch.inference_mode():
        assert_equal(model.embed(long, 0, "src")[:, 0], expected)
    assert model.sinusoids.dtype == torch.float64
    model(SRC, TGT).sum().backward()  # a table that grew while translating serves training too
    assert model.embedding.weight.grad is not None and "sinusoids" not in model.state_dict()


def test_learned_positions_are_a_table_for_each_side_and_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 3, row E."""
    model = built(SQUARE.model_copy(update={"positions": "learned"}))
    assert model.src_positions.weight.shape == model.tgt_positions.weight.shape == (LEARNED_POSITIONS, SQUARE.d_model)
    scaled = model.embedding.weight[SRC] * math.sqrt(SQUARE.d_model)
    assert_equal(model.embed(SRC, 0, "src").transpose(0, 1), scaled + model.src_positions.weight[:5])
    assert_equal(model.embed(SRC, 2, "tgt").transpose(0, 1), scaled + model.tgt_positions.weight[2:7])
    model(SRC, TGT).square().sum().backward()
    assert model.src_positions.weight.grad[:5].any(1).all() and model.tgt_positions.weight.grad[:4].any(1).all()
    monkeypatch.setattr(nmt.model, "LEARNED_POSITIONS", 5)
    model.embed(SRC, 0, "src")
    with pytest.raises(PositionError, match="6 tokens .* 5 learned positions"):
        model.embed(SRC, 1, "src")


# --- Table 3: sizes -------------------------------------------------------------------------------------------------------------------


def counted(config: ModelConfig, vocabulary: int) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in Transformer(config, vocabulary).parameters())


def by_formula(c: ModelConfig, vocabulary: int) -> int:
    keys, values = c.heads * c.d_k, c.heads * c.d_v
    attention_block = (c.d_model + 1) * (2 * keys + values) + (values + 1) * c.d_model
    feed_forward = (c.d_model + 1) * c.d_ff + (c.d_ff + 1) * c.d_model
    norm = 2 * c.d_model
    return c.layers * (3 * attention_block + 2 * feed_forward + 5 * norm) + vocabulary * c.d_model


def variant(name: str, **changed: int) -> ModelConfig:
    return ModelConfig.model_validate({**VARIANTS[name]["model"], **changed})


def test_variants_have_the_sizes_of_the_paper() -> None:
    common = {"layers": 6, "d_k": 64, "d_v": 64, "positions": "sinusoidal"}
    assert variant("base").model_dump() == {**common, "d_model": 512, "d_ff": 2048, "heads": 8, "dropout": 0.1}
    assert variant("big").model_dump() == {**common, "d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3}
    assert variant("big-en-fr").model_dump() == {**variant("big").model_dump(), "dropout": 0.1}


@pytest.mark.parametrize("config", [*map(variant, VARIANTS), ODD], ids=[*VARIANTS, "odd"])
def test_the_number_of_weights_is_that_of_the_formula(config: ModelConfig) -> None:
    assert counted(config, 37000) == by_formula(config, 37000)


def test_base_has_44_million_weights_outside_the_embedding() -> None:
    assert round((counted(variant("base"), 37000) - 37000 * 512) / 1e5) == 441
    assert round(counted(variant("base"), 37000) / 1e5) == 631


@pytest.mark.parametrize(
    ("config", "vocabulary", "millions"),
    [
        (variant("base"), 41000, 65),
        (variant("base", d_k=16), 41000, 58),  # B: d_v stays
        (variant("base", d_k=32), 41000, 60),
        (variant("base", layers=2), 41000, 36),  # C
        (variant("base", layers=4), 41000, 50),
        (variant("base", layers=8), 41000, 80),
        (variant("base", d_model=256, d_k=32, d_v=32), 41000, 28),
        (variant("base", d_model=1024, d_k=128, d_v=128), 41000, 168),
        (variant("base", d_ff=1024), 41000, 53),
        (variant("base", d_ff=4096), 41000, 90),
        (variant("big"), 36000, 213),
    ],
)
def test_the_column_of_parameters_in_table_3_is_met(config: ModelConfig, vocabulary: int, millions: int) -> None:
    assert counted(config, vocabulary) / 1e6 == pytest.approx(millions, abs=0.6)  # printed in whole millions


# --- initial weights ------------------------------------------------------------------------------------------------------------------


def test_each_projection_is_xavier_uniform_by_its_own_sizes() -> None:
    config = ModelConfig(layers=1, d_model=64, d_ff=150, heads=4, d_k=40, d_v=8, dropout=0.0, positions="learned")
    torch.manual_seed(1)
    model = Transformer(config, 500)
    layer = model.decoder[0]
    assert isinstance(layer, DecoderLayer)
    joint = [
        (weight.flatten(0, 1), 64, outputs)
        for block in (layer.self_attention, layer.cross_attention)
        for (weight, _), outputs in zip(projections(block), (160, 160, 32), strict=True)
    ]
    for weight, inputs, outputs in [
        *joint,
        (layer.cross_attention.output.weight, 32, 64),
        (layer.feed_forward.inner.weight, 64, 150),
        (layer.feed_forward.outer.weight, 150, 64),
    ]:
        bound = math.sqrt(6 / (inputs + outputs))
        assert weight.shape == (outputs, inputs)
        assert 0.99 * bound < weight.abs().max() <= bound
        # The variance of a uniform distribution is bound^2 / 3; its estimate from n draws spreads by sqrt(0.8 / n) of itself.
        assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=4 * math.sqrt(0.8 / weight.numel()))
        assert abs(weight.mean().item()) < 4 * bound / math.sqrt(3 * weight.numel())
    for table in (model.embedding.weight, model.src_positions.weight, model.tgt_positions.weight):
        assert table.std().item() == pytest.approx(64**-0.5, rel=4 / math.sqrt(2 * table.numel()))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name


def test_initial_weights_are_a_function_of_the_seed() -> None:
    torch.manual_seed(3)
    first = Transformer(ODD, VOCABULARY).state_dict()
    torch.manual_seed(3)
    again = Transformer(ODD, VOCABULARY).state_dict()
    torch.manual_seed(4)
    other = Transformer(ODD, VOCABULARY).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


# --- §5.4: dropout --------------------------------------------------------------------------------------------------------------------


def test_dropout_acts_on_sublayer_outputs_and_on_embedding_plus_position_and_nowhere_else() -> None:
    """PyTorch's layers give the same states when our masks are put in exactly these places, in this order."""
    ours = built(SQUARE.model_copy(update={"dropout": 0.3})).train()
    ours.generator = torch.Generator().manual_seed(5)
    masks: list[Tensor] = []
    for module in ours.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda module, inputs, output: masks.append(torch.where(inputs[0] == 0, 1.0, output / inputs[0])))
    found = ours(SRC, TGT)
    assert len(masks) == 2 + SQUARE.layers * (2 + 3)
    expected, _ = PyTorchTransformer(ours, iter(masks)).train()(SRC, TGT)
    assert_equal(found, expected)
    assert not torch.equal(masks[1], masks[2])
    assert {type(module).__name__ for module in ours.modules() if "dropout" in type(module).__name__.lower()} == {"Dropout"}


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_a_mask_keeps_its_share_and_the_expectation(p: float) -> None:
    n = 1_000_003
    model = Transformer(ODD.model_copy(update={"dropout": p}), VOCABULARY)
    model.generator = torch.Generator().manual_seed(11)
    [noise] = model.noise(1, torch.empty(1, -(-n // ODD.d_model)))
    mask = model.dropout(torch.ones(noise.shape, dtype=torch.float64), noise).flatten()[:n]
    kept = mask != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=3 * math.sqrt(p * (1 - p) / n))
    assert len(mask[kept].unique()) == 1  # all that is kept is scaled alike
    assert mask[kept][0].item() == pytest.approx(1 / (1 - p), rel=1e-4)  # p is a number of 65,536ths
    assert mask.mean().item() == pytest.approx(1, abs=3 * math.sqrt(p / (1 - p) / n))
    assert mask.var().item() == pytest.approx(p / (1 - p), rel=0.02)
    pairs = (kept[:-1] & kept[1:]).double().mean().item()  # neighbours are independent, though four come from one random number
    assert pairs == pytest.approx((1 - p) ** 2, abs=5 * math.sqrt(p / n))


def test_noise_is_a_function_of_the_seed_and_not_of_the_threads() -> None:
    model, tokens = Transformer(ODD.model_copy(update={"dropout": 0.1}), VOCABULARY), torch.empty(30, 1000)
    threads = torch.get_num_threads()

    def noise(seed: int, threads: int) -> Tensor:
        torch.set_num_threads(threads)
        model.generator = torch.Generator().manual_seed(seed)
        return torch.stack(model.noise(2, tokens))

    try:
        assert torch.equal(noise(1, 1), noise(1, 2))
        assert not torch.equal(noise(1, 1), noise(2, 1))
        assert not torch.equal(*noise(1, 1))
    finally:
        torch.set_num_threads(threads)


def test_no_noise_is_drawn_outside_training_or_without_dropout() -> None:
    x = torch.randn(5)
    for model in (Transformer(ODD.model_copy(update={"dropout": 0.4}), VOCABULARY).eval(), Transformer(ODD, VOCABULARY)):
        model.generator = torch.Generator().manual_seed(1)
        state = model.generator.get_state()
        assert model.noise(3, TGT) == [None] * 3 and torch.equal(state, model.generator.get_state())
        assert model.dropout(x, None) is x


def test_the_gradient_goes_through_what_is_kept_alone() -> None:
    x, noise = torch.randn(1000, requires_grad=True), torch.randint(-(1 << 15), 1 << 15, (1000,), dtype=torch.int16)
    output = Dropout(0.5)(x, noise)
    output.sum().backward()
    assert torch.equal(x.grad, torch.where(output == 0, 0.0, 2.0))
