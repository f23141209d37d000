"""The figures draw the numbers of the paper's formulas."""

import math
import re

import numpy as np
import torch

from nmt.figures import inline, picture
from nmt.model import sinusoids
from nmt.plots import LOGITS, SPREADS, of_attention, of_averaging, of_formulas, of_lengths, saturation, waves


def test_with_the_papers_base_the_waves_are_the_models_positions() -> None:
    np.testing.assert_allclose(waves(300, 64, 10_000), sinusoids(300, 64), atol=1e-6)


def test_a_wave_of_another_base_repeats_after_its_wavelength() -> None:
    table = waves(2000, 8, 100.0)
    angles = np.unwrap(np.arctan2(table[:, 6], table[:, 7]))  # of the last two of 8 dimensions: 2 pi 100^(6 / 8)
    assert math.isclose(2 * math.pi / (angles[1] - angles[0]), 2 * math.pi * 100**0.75, rel_tol=1e-9)


def test_a_softmax_goes_from_equal_weights_to_one_and_its_slope_fades() -> None:
    largest, slopes = saturation()
    assert math.isclose(largest[0], 1 / LOGITS, rel_tol=0.3) and largest[-1] > 0.95
    assert all(after > before for before, after in zip(largest, largest[1:], strict=False))
    at = {spread: slope for spread, slope in zip(SPREADS, slopes, strict=True)}
    one, eight, hundred = (min(at, key=lambda spread, wanted=wanted: abs(spread - wanted)) for wanted in (1, 8, 100))
    assert at[hundred] < at[eight] / 4 and at[one] > 2 * at[hundred]
    for spread in (one, eight):  # the mean over samples of a (1 - a), by another implementation
        z = torch.randn(20_000, LOGITS, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * spread
        top = z.softmax(1).amax(1)
        assert math.isclose((top * (1 - top)).mean().item(), at[spread], rel_tol=0.05)


def test_the_wavelengths_of_the_papers_base_go_from_2_pi_to_nearly_20000_pi() -> None:
    axes = of_formulas(d_model=512)["wavelengths"][0].axes[0]
    [line] = [line for line in axes.lines if line.get_label() == "base 10,000"]
    drawn = np.asarray(line.get_ydata())
    assert math.isclose(drawn[0], 2 * math.pi) and math.isclose(drawn[-1], 2 * math.pi * 10_000 ** (510 / 512))


def test_the_learning_rates_peak_at_the_end_of_their_warmup() -> None:
    drawn = of_formulas()
    for name, peaks in (("rate-width", {f"d_model {size}": (4000, size) for size in (256, 512, 1024)}),
                        ("rate-warmup", {f"warmup {count:,}": (count, 512) for count in (1000, 4000, 8000)})):  # fmt: skip
        for line in drawn[name][0].axes[0].lines:
            x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
            warmup, size = peaks[str(line.get_label())]
            assert x[y.argmax()] == warmup and math.isclose(y.max(), (size * warmup) ** -0.5)


def test_every_figure_is_a_file_of_its_own_and_part_of_a_page_and_the_same_each_time() -> None:

    def drawn() -> dict[str, tuple[str, str]]:
        figures = of_formulas(16, 20)
        return {name: (picture(figures[name][0]), inline(figures[name][0], name)) for name in ("bases", "wavelengths")}

    first = drawn()
    assert first == drawn()
    for alone, part in first.values():
        assert "#00000" not in alone and "var(--" not in alone
        assert "#00000" not in part and "http" not in part and "var(--ink)" in part


def test_attention_has_a_map_for_each_head_with_the_pieces_beside_it() -> None:
    src, tgt = ["Ein", "Öl", "名", "end"], ["begin", "An", "oil"]
    shapes = {"encoder": (4, 4), "decoder": (3, 3), "cross": (3, 4)}
    layers = {kind: [torch.rand(5, *shape), torch.rand(5, *shape)] for kind, shape in shapes.items()}
    drawn = of_attention(layers["encoder"], layers["decoder"], layers["cross"], src, tgt)
    assert list(drawn) == [f"attention-{kind}-{layer}" for kind in shapes for layer in (1, 2)]
    figure = drawn["attention-cross-2"]
    maps = [axes for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(np.asarray(maps[3].images[0].get_array()), layers["cross"][1][3].numpy())
    text = re.findall(r">([^<>]+)</text>", picture(figure))
    assert {*src, *tgt, "head 5"} <= set(text)  # a glyph that the font has not is text all the same


def test_measurements_are_drawn_where_they_are() -> None:
    for name, figure in {
        **of_averaging([1, 2, 3], [2.5, 2.25, 2.0], [20.0, 21.0, 22.0], "valid"),
        **of_lengths([4.0, 90.0, 500.0], [1.0, 2.0, 3.0], [30.0, 20.0, 1.0], 77, "test"),
    }.items():
        line, *mark = figure.axes[0].lines
        assert len(np.asarray(line.get_ydata())) == 3
        assert [list(np.asarray(found.get_xdata())) for found in mark] == ([[77, 77]] if name.startswith("length") else [])
        assert ("longest in training, 77" in picture(figure)) == bool(mark)
