import random

import pytest

from nmt.alignment import first_misfit, misaligned


def parallel_lengths(lines: int, seed: int) -> tuple[list[int], list[int]]:
    """Lengths like those of news: log-normal over the lines, and a translation within about a fifth of its source."""
    chance = random.Random(seed)
    src = [int(chance.lognormvariate(4.6, 0.7)) + 5 for _ in range(lines)]
    return src, [int(1.1 * length * chance.lognormvariate(0, 0.2)) for length in src]


def test_a_missing_line_among_very_different_ones_is_found_exactly() -> None:
    src = [10, 200, 15, 90, 3, 400, 20, 150, 8, 60]
    assert first_misfit(src, src[:4] + src[5:]) == 5
    assert first_misfit(src[:4] + src[5:], src) == 5


def test_lines_missing_at_the_end_are_the_first_without_partner() -> None:
    src = [10, 200, 15, 90, 3, 400, 20, 150, 8, 60]
    assert first_misfit(src, src[:-1]) == 10
    assert first_misfit(src[:-3], src) == 8


@pytest.mark.parametrize("lines", [50, 1000, 10_000])
@pytest.mark.parametrize("missing", [1, 4])
def test_the_first_of_missing_lines_is_found_within_a_few(lines: int, missing: int) -> None:
    far = 0
    for seed in range(20):
        src, tgt = parallel_lengths(lines, seed)
        start = random.Random(seed).randrange(lines - missing)
        shorter, longer = (src, tgt) if seed % 2 else (tgt, src)
        del shorter[start : start + missing]
        far += abs(first_misfit(src, tgt) - (start + 1)) > 3
        assert len(longer) == lines
    assert far <= 2


def test_of_many_gaps_the_first_is_found() -> None:
    for seed in range(5):
        src, tgt = parallel_lengths(5000, seed)
        gaps = [1200 + 300 * n for n in range(10)]
        tgt = [length for line, length in enumerate(tgt) if line not in gaps]
        assert abs(first_misfit(src, tgt) - 1201) <= 6


def test_a_side_without_lines_misfits_from_the_first() -> None:
    assert first_misfit([], [4, 5]) == 1


def test_the_error_names_both_texts_both_counts_and_the_line() -> None:
    message = str(misaligned("a.en", [9] * 1000 + [500], "a.de", [9] * 1000))
    assert "a.en has 1,001 lines, a.de has 1,000" in message and message.endswith("line 1,001")
