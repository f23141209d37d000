"""The tests are sacreBLEU's, the same has p = 1, and the test over seeds is the one that can be worked out by hand."""

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.ter import TER

from pipelines import significance
from pipelines.significance import Seeds, combine, compare_seeds, paired, student_p

WORDS = "the a old new red small house tree cat dog sees has finds and not near far one two three".split()


def sentences(seed: int, count: int = 150) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(count)]


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of their words replaced."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split()) for line in lines]


REFERENCES = sentences(1)
GOOD, BAD = noisy(REFERENCES, 0.2, 2), noisy(REFERENCES, 0.25, 3)


@pytest.mark.slow
@pytest.mark.essential
def test_randomization_is_that_of_sacrebleus_command_line(tmp_path: Path) -> None:
    for name, lines in (("ref", REFERENCES), ("bad", BAD), ("good", GOOD)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "bad", "good", "-m", "bleu", "chrf", "ter", "-f", "json", "--paired-ar"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    system = json.loads(done.stdout)[1]
    found = paired(BAD, GOOD, REFERENCES)
    for metric in ("bleu", "chrf", "ter"):
        (told,) = (value for name, value in system.items() if name.lower().startswith(metric))
        assert found[metric].randomization_p == told["p_value"]
        assert found[metric].score == round(told["score"], 2)


@pytest.mark.slow
def test_bootstrap_is_that_of_sacrebleus_command_line(tmp_path: Path) -> None:
    """As text, because sacreBLEU 2.6 cannot write the interval of this test as JSON."""
    for name, lines in (("ref", REFERENCES), ("bad", BAD), ("good", GOOD)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "bad", "good", "-m", "bleu", "ter", "-f", "text", "--paired-bs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found, values = paired(BAD, GOOD, REFERENCES), re.findall(r"p = (\d\.\d{4})", done.stdout)
    assert values == [f"{found[metric].bootstrap_p:.4f}" for metric in ("bleu", "ter")]


@pytest.mark.slow
def test_each_line_is_counted_once_for_both_tests_and_where_the_systems_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, str]] = []
    count = TER._compute_segment_statistics

    def counting(self: TER, hypothesis: str, reference: dict[str, Any]) -> list[Any]:
        counted.append((hypothesis, " ".join(reference["ref_words"][0])))
        return count(self, hypothesis, reference)

    monkeypatch.setattr(TER, "_compute_segment_statistics", counting)
    told: list[str] = []
    paired(GOOD[:40], [*GOOD[:30], *BAD[30:40]], REFERENCES[:40], told.append)
    different = sum(good != bad for good, bad in zip(GOOD[30:40], BAD[30:40], strict=True))
    assert len(counted) == len(set(counted)) == 40 + different
    assert "Ter: 0 of 40 lines" in told and "Ter: randomization" in told


@pytest.mark.slow
def test_what_is_the_same_has_the_scores_and_signatures_of_the_tests_without_making_them() -> None:
    found, other = paired(GOOD, GOOD, REFERENCES), paired(GOOD, BAD, REFERENCES)
    for metric in ("bleu", "chrf", "ter"):
        assert found[metric].score == found[metric].baseline == other[metric].baseline
        assert found[metric].signatures == other[metric].signatures


@pytest.mark.slow
def test_the_same_translations_have_p_1_whatever_their_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    for other in (GOOD, [line.replace(" ", "  ") for line in GOOD]):
        found = paired(GOOD, other, REFERENCES)["bleu"]
        assert (found.difference, found.bootstrap_p, found.randomization_p) == (0, 1, 1)
        assert found.decision(0.05) is False


@pytest.mark.slow
def test_a_large_difference_is_no_chance_and_a_small_one_is() -> None:
    worse = noisy(REFERENCES, 0.6, 4)
    assert paired(worse, GOOD, REFERENCES)["bleu"].decision(0.05) is True
    assert paired(GOOD, noisy(REFERENCES, 0.2, 5), REFERENCES)["bleu"].decision(0.05) is False


def test_tests_that_disagree_decide_nothing() -> None:
    one = significance.Paired(1.0, 2.0, 1.0, bootstrap_p=0.04, randomization_p=0.06, signatures=[])
    assert one.decision(0.05) is None


# Student's table: t of two-sided 5 % and 1 %
@pytest.mark.parametrize(
    ("degrees", "t", "p"), [(1, 12.706, 0.05), (4, 2.776, 0.05), (10, 2.228, 0.05), (10, 3.169, 0.01), (1e6, 1.96, 0.05)]
)
def test_p_is_that_of_students_table(degrees: float, t: float, p: float) -> None:
    assert student_p(t, degrees) == pytest.approx(p, rel=2e-3)
    assert student_p(-t, degrees) == student_p(t, degrees)
    assert student_p(0, degrees) == 1


def test_seeds_and_sentences_both_count_as_by_hand() -> None:
    found = combine([26.0, 26.4, 26.2], [26.9, 26.7, 27.1], 0.7, sentences=0.04, lines=3001)
    assert found.means == (26.2, 26.9)
    assert found.deviations == (pytest.approx(0.2), pytest.approx(0.2))
    variance = 0.04 / 3 + 0.04 / 3 + 0.04
    assert found.standard_error == pytest.approx(math.sqrt(variance)) == pytest.approx(0.2582, abs=1e-4)
    assert found.degrees == pytest.approx(variance**2 / (2 * (0.04 / 3) ** 2 / 2 + 0.04**2 / 3000))
    assert found.p == pytest.approx(student_p(0.7 / math.sqrt(variance), found.degrees or 0))
    assert 0.01 < (found.p or 0) < 0.05  # t = 2.71 at 25 degrees: between 2.06 and 2.79 of the table
    assert found.enough


def test_without_variance_between_sentences_it_is_welchs_test() -> None:
    """Equal sizes and variances: Student's classic test, t = 0.7 / sqrt(2 * 0.04 / 3) = 4.29 with 4 degrees, p between 1 % and 2 %."""
    found = combine([26.0, 26.4, 26.2], [26.9, 26.7, 27.1], 0.7, sentences=0.0, lines=3001)
    assert found.degrees == pytest.approx(4)
    assert 0.01 < (found.p or 0) < 0.02


@pytest.mark.parametrize(("first", "second", "enough"), [([26.0], [26.5, 26.7], None), ([26.0, 26.1], [26.5, 26.7], False)])
def test_too_few_seeds_are_no_test_or_a_weak_one(first: list[float], second: list[float], enough: bool | None) -> None:
    found = combine(first, second, 0.5, sentences=0.01, lines=100)
    assert (found.p is None) == (enough is None) and not found.enough


def test_scores_of_seeds_are_those_of_the_corpus_and_more_sentences_are_surer() -> None:
    sides = [[noisy(REFERENCES, share, seed) for seed in (11, 12, 13)] for share in (0.2, 0.4)]
    found = compare_seeds(sides[0], sides[1], REFERENCES)
    means = [sum(significance.corpus_bleu(one, REFERENCES) for one in side) / 3 for side in sides]
    assert found.means == (pytest.approx(means[0], abs=0.01), pytest.approx(means[1], abs=0.01))
    assert found.difference == pytest.approx(means[1] - means[0], abs=0.02)
    few = compare_seeds([one[:40] for one in sides[0]], [one[:40] for one in sides[1]], REFERENCES[:40])
    assert few.sentence_deviation > found.sentence_deviation > 0


def test_equal_sides_of_seeds_have_p_1() -> None:
    found = compare_seeds([GOOD, GOOD], [GOOD, GOOD], REFERENCES)
    assert isinstance(found, Seeds)
    assert (found.difference, found.sentence_deviation, found.p) == (0, 0, 1)
