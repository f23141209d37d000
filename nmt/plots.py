"""The figures of the paper's formulas, and of what a trained model does: which numbers are drawn, from the project's own functions."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from nmt.figures import Line, Map, line_figure, map_figure
from nmt.model import sinusoids
from nmt.optim import learning_rate

BASES = (100.0, 10_000.0, 1_000_000.0)
SPREADS = np.geomspace(0.1, 100, 61).tolist()
LOGITS = 32  # into one softmax
D_K = 64  # of base and big
MAPS_ACROSS, TOKENS_ACROSS = 4, 64  # maps side by side, as many as fit on a screen


def of_formulas(d_model: int = 128, positions: int = 100, titles: bool = True) -> dict[str, tuple[Figure, str]]:
    """The figures that need no model: by name, with a caption. Without titles they are for a page that sets its own."""

    def title(text: str) -> str:
        return text if titles else ""

    table = sinusoids(positions, d_model).numpy()
    dimensions = np.arange(0, d_model, 2).tolist()
    updates = np.arange(100, 20_001, 100).tolist()

    def rates(label: str, size: int, warmup: int) -> Line:
        return Line(label, updates, [learning_rate(step, size, warmup) for step in updates])

    largest, slopes = saturation()
    return {
        "positions": (
            map_figure([Map("", table)], "dimension", "position", signed=True, title=title(f"Positions, d_model {d_model} (§3.5)")),
            "Positions (§3.5): sine in the even and cosine in the odd dimensions. Left the position turns fast, right slowly.",
        ),
        "wavelengths": (
            line_figure(
                [Line(f"base {base:,.0f}", dimensions, [2 * math.pi * base ** (i / d_model) for i in dimensions]) for base in BASES],
                "dimension; the wavelength in positions",
                log_y=True,
                title=title("Wavelengths of the positions (§3.5)"),
            ),
            "Wavelengths of the dimensions, from 2π to nearly 2π times the base; the paper's base is 10,000.",
        ),
        "bases": (
            map_figure(
                [Map(f"base {base:,.0f}", waves(positions, d_model, base)) for base in BASES],
                "dimension",
                "position",
                signed=True,
                across=len(BASES),
                title=title("Positions with other bases"),
            ),
            "Positions with other bases. A small base repeats within a sentence, a large one leaves most dimensions without use.",
        ),
        "rate-width": (
            line_figure(
                [rates(f"d_model {size}", size, 4000) for size in (256, 512, 1024)],
                "update",
                title=title("Learning rate, warmup 4,000 (§5.3)"),
            ),
            "Learning rate (§5.3) by the width of the model, with the paper's warmup of 4,000 updates.",
        ),
        "rate-warmup": (
            line_figure(
                [rates(f"warmup {count:,}", 512, count) for count in (1000, 4000, 8000)],
                "update",
                title=title("Learning rate, d_model 512 (§5.3)"),
            ),
            "Learning rate (§5.3) by the warmup, for the paper's d_model of 512: the peak is at its end.",
        ),
        "saturation": (
            line_figure(
                [Line("largest weight", SPREADS, largest), Line("largest slope of it", SPREADS, slopes)],
                "standard deviation of the softmax's inputs",
                log_x=True,
                marks=[(1, "scaled"), (math.sqrt(D_K), f"not scaled, d_k {D_K}")],
                title=title(f"Softmax over {LOGITS} keys (§3.2.1)"),
            ),
            f"Softmax over {LOGITS} random inputs (§3.2.1). With d_k {D_K}, q·k has deviation {math.sqrt(D_K):.0f} unscaled: one key takes"
            " nearly all and the gradient fades. Divided by the root of d_k it is 1.",
        ),
    }


def waves(positions: int, d_model: int, base: float) -> np.ndarray:
    """The paper's positions with another base than 10,000. [positions, d_model]"""
    angles = np.arange(positions)[:, None] * base ** -(np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(positions, d_model)


def saturation(samples: int = 2000) -> tuple[list[float], list[float]]:
    """For each of SPREADS, means over random inputs of the largest weight a of a softmax, and of its slope a (1 - a)."""
    normal = np.random.default_rng(1).standard_normal((samples, LOGITS))
    largest, slope = [], []
    for spread in SPREADS:
        z = spread * normal
        weights = np.exp(z - z.max(1, keepdims=True))
        top = 1 / weights.sum(1)  # of the largest input
        largest.append(float(top.mean()))
        slope.append(float((top * (1 - top)).mean()))
    return largest, slope


def of_attention(
    encoder: Sequence[Tensor], decoder: Sequence[Tensor], cross: Sequence[Tensor], src: Sequence[str], tgt: Sequence[str]
) -> dict[str, Figure]:
    """A figure of all heads for each layer and kind of attention, weights as in `nmt.attention_maps`; `src` and `tgt` name the tokens."""
    kinds: dict[str, tuple[Sequence[Tensor], Sequence[str], Sequence[str], str, str]] = {
        "encoder": (encoder, src, src, "source, looked at", "source"),
        "decoder": (decoder, tgt, tgt, "target, looked at", "target so far"),
        "cross": (cross, tgt, src, "source, looked at", "target so far"),
    }
    found = {}
    for kind, (layers, rows, columns, x_label, y_label) in kinds.items():
        for number, weights in enumerate(layers, start=1):
            heads = [Map(f"head {head}", weights[head - 1].numpy(), rows, columns) for head in range(1, len(weights) + 1)]
            title = f"{kind} attention, layer {number}"
            most = max(1, min(MAPS_ACROSS, TOKENS_ACROSS // len(columns)))
            across = math.ceil(len(heads) / math.ceil(len(heads) / most))  # as many in each row
            found[f"attention-{kind}-{number}"] = map_figure(heads, x_label, y_label, across=across, title=title)
    return found


def of_averaging(counts: Sequence[int], losses: Sequence[float], bleus: Sequence[float], text: str) -> dict[str, Figure]:
    """Loss and BLEU of the average of the last 1, 2, … checkpoints; `text` says on what."""
    return {
        "averaging-loss": line_figure([Line("", counts, losses)], "checkpoints averaged", title=f"Loss of {text} (§6.1)", from_zero=False),
        "averaging-bleu": line_figure([Line("", counts, bleus)], "checkpoints averaged", title=f"BLEU of {text} (§6.1)", from_zero=False),
    }


def of_lengths(lengths: Sequence[float], losses: Sequence[float], bleus: Sequence[float], longest: int, text: str) -> dict[str, Figure]:
    """Loss and BLEU by the tokens of a source; those of training reach to `longest`."""
    mark = f"longest in training, {longest}"
    return {
        "length-loss": line_figure(
            [Line("", lengths, losses)], "tokens of the source", log_x=True, title=f"Loss, {text}", marks=[(longest, mark)]
        ),
        "length-bleu": line_figure(
            [Line("", lengths, bleus)], "tokens of the source", log_x=True, title=f"BLEU, {text}", marks=[(longest, mark)]
        ),
    }
