"""The loss held against PyTorch's cross entropy, whole and in one piece (§5.4; perplexity: §6.2)."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import nmt.loss
from nmt.loss import loss_sums

N, D, V = 11, 6, 17


@pytest.fixture(params=["as on a CPU", "as on a GPU"], autouse=True)
def looking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds as well where values may not be looked at."""
    monkeypatch.setattr(nmt.loss, "_may_look", lambda x: request.param == "as on a CPU")


def inputs(kind: torch.dtype, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """States [N, D], embedding [V, D] and targets [N], of which two are alike."""
    torch.manual_seed(7)
    states, embedding = size * torch.randn(N, D, dtype=torch.float64), torch.randn(V, D, dtype=torch.float64)
    targets = torch.randint(V, (N,))
    targets[3] = targets[4]
    return states.to(kind).requires_grad_(), embedding.to(kind).requires_grad_(), targets


def expected_sums(states: Tensor, embedding: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    logits = states @ embedding.T
    return cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing), cross_entropy(logits, targets, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 4, N, 1024])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_value_and_gradients_are_those_of_cross_entropy_for_any_chunk(
    chunk: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nmt.loss, "CHUNK", chunk)
    ours, theirs = inputs(torch.float64), inputs(torch.float64)
    loss, nll = loss_sums(*ours, smoothing)
    expected_loss, expected_nll = expected_sums(*theirs, smoothing)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-12)
    assert nll.item() == pytest.approx(expected_nll.item(), rel=1e-12)
    (0.37 * loss).backward()  # the gradient from above is multiplied in
    (0.37 * expected_loss).backward()
    for found, expected in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-10, atol=1e-10)


def test_without_smoothing_the_loss_is_the_negative_log_likelihood() -> None:
    loss, nll = loss_sums(*inputs(torch.float64), 0.0)
    assert loss.item() == nll.item() and loss.requires_grad and not nll.requires_grad


def test_sums_over_pieces_add_up() -> None:
    states, embedding, targets = inputs(torch.float64)
    whole = loss_sums(states, embedding, targets, 0.1)
    pieces = [loss_sums(states[part], embedding, targets[part], 0.1) for part in (slice(0, 4), slice(4, N))]
    for total, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        assert total.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-12)


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    states, embedding, targets = inputs(torch.float64)
    with torch.no_grad():
        loss, nll = loss_sums(states, embedding, targets, 0.1)
    expected_loss, expected_nll = expected_sums(states, embedding, targets, 0.1)
    assert (loss.item(), nll.item()) == pytest.approx((expected_loss.item(), expected_nll.item()), rel=1e-12)
    assert not loss.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_huge_logits_break_nothing(smoothing: float) -> None:
    """Logits up to some 100,000: every probability but one is 0 in float32, and so is that of most targets."""
    ours, theirs = inputs(torch.float32, 2e4), inputs(torch.float32, 2e4)
    loss, nll = loss_sums(*ours, smoothing)
    expected_loss, expected_nll = expected_sums(*theirs, smoothing)
    assert nll > 1e4
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(nll, expected_nll, rtol=1e-5, atol=0)
    loss.backward()
    expected_loss.backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1].grad, theirs[1].grad, rtol=1e-4, atol=1.0)  # its entries are sums of numbers around 20,000


def test_bfloat16_states_give_sums_in_float32_and_gradients_in_the_types_of_the_inputs() -> None:
    states, embedding, targets = inputs(torch.bfloat16)
    weights = embedding.detach().float().requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (states, embedding)]
    loss, nll = loss_sums(states, weights, targets, 0.1)
    expected_loss, expected_nll = expected_sums(*exact, targets, 0.1)
    loss.backward()
    expected_loss.backward()
    assert (loss.dtype, nll.dtype, states.grad.dtype, weights.grad.dtype) == (torch.float32,) * 2 + (torch.bfloat16, torch.float32)
    # A bfloat16 has 8 bits: each logit and each probability is off by up to 1/256 of itself, N tokens add up.
    torch.testing.assert_close(loss.double(), expected_loss, rtol=0.01, atol=0)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=0.01, atol=0)
    torch.testing.assert_close(states.grad.double(), exact[0].grad, rtol=0.03, atol=0.03)
    torch.testing.assert_close(weights.grad.double(), exact[1].grad, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("chunk", [1, 4, N, N + 1, 1024])
def test_states_without_a_target_count_for_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.loss, "CHUNK", chunk)
    states, embedding, targets = inputs(torch.float64)
    alone, alone_embedding, _ = inputs(torch.float64)
    more = torch.cat([states.detach(), torch.full((6, D), 3.0, dtype=torch.float64)]).requires_grad_()
    sums, expected = loss_sums(more, embedding, targets, 0.1), loss_sums(alone, alone_embedding, targets, 0.1)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=0)
    sums[0].backward()
    expected[0].backward()
    assert more.grad is not None and alone.grad is not None
    torch.testing.assert_close(more.grad[:N], alone.grad, rtol=1e-12, atol=1e-14)
    assert not more.grad[N:].any()
    torch.testing.assert_close(embedding.grad, alone_embedding.grad, rtol=1e-12, atol=1e-14)
