"""Everything that is said of a set: all its scores, how long its sides are, and what looks wrong with the translations.

TER takes as long as all the rest together, and the bootstraps as long as the scores, so all of it is spread over the cores.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import compress
from typing import Any

from nmt.lines import is_blank, join_whitespace
from nmt.progress import Progress
from nmt.remains import repeats
from nmt.scoring import Scored, bleu, chrf, edits, mean, moses_bleu, rate, sentence_bleu, sentence_chrf, ter
from nmt.workers import spread

SMALL = 500  # lines: fewer are scored before a second process has started
TER_LINES = 500  # in one task of a worker: TER takes as long as all the rest together
LineScores = dict[str, Scored]  # by metric


@dataclass(frozen=True)
class Texts:
    """A set: equally many lines of each, one at least. `unseen` tells of each whether its source is missing from the training text."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    unseen: list[bool]


def evaluate(
    sets: dict[str, Texts], language: str, comet: Mapping[str, Scored] | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, LineScores]]:
    """Everything that is said of each set, whose target language is `language`: scores, lengths, what looks wrong; and its lines' scores.

    Without unseen lines there is no `bleu_unseen` (None). `comet` is what `nmt.comet` found of each set, and stands beside the rest.
    What takes long is spread over the cores.
    """
    tasks: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for name, texts in sets.items():
        pair = texts.hypotheses, texts.references
        for start in range(0, len(texts.sources), TER_LINES):
            chunk = (side[start : start + TER_LINES] for side in pair)
            tasks[name, "edits", start] = partial(edits, *chunk)
        unseen = [list(compress(side, texts.unseen)) for side in pair]
        whole: dict[str, Callable[[], Any]] = {
            "chrf++": partial(chrf, *pair, word_order=2),
            "chrf": partial(chrf, *pair),
            "lines_chrf": partial(sentence_chrf, *pair),
            "moses": partial(moses_bleu, *pair, language),
            "bleu": partial(bleu, *pair),
            "bleu_unseen": partial(bleu, unseen[0], unseen[1]) if any(texts.unseen) else _nothing,
            "bleu_uncased": partial(bleu, *pair, lowercase=True),
            "bleu_intl": partial(bleu, *pair, tokenize="intl"),
            "lines_bleu": partial(sentence_bleu, *pair),
        }
        tasks |= {(name, metric, 0): task for metric, task in whole.items()}
    order = sorted(tasks, key=lambda key: key[1] != "edits")
    if sum(len(texts.sources) for texts in sets.values()) < SMALL:
        computed = [tasks[key]() for key in order]
    else:
        with Progress("score", len(order), "steps") as progress:
            computed = spread([tasks[key] for key in order], progress.advance)
    found = dict(zip(order, computed, strict=True))
    results, lines = {}, {}
    for name, texts in sets.items():
        counted = [counts for key, chunk in found.items() if key[:2] == (name, "edits") for counts in chunk]
        single = {metric: found[name, metric, 0] for metric in ("bleu", "bleu_unseen", "bleu_uncased", "bleu_intl")}
        scores = {
            **single,
            **found[name, "moses", 0],
            **{metric: found[name, metric, 0] for metric in ("chrf", "chrf++")},
            "ter": ter(counted),
            **({"comet": mean(comet[name])} if comet else {}),
        }
        results[name] = {
            "lines": len(texts.sources),
            "unseen_lines": sum(texts.unseen),
            **{metric: score and asdict(score) for metric, score in scores.items()},
            "length_ratio": round(scores["bleu"].hypothesis_length / max(1, scores["bleu"].reference_length), 4),
            **_looks(texts),
        }
        rates = [round(rate([counts]), 2) for counts in counted]
        lines[name] = {
            "chrf": found[name, "lines_chrf", 0],
            "bleu": found[name, "lines_bleu", 0],
            "ter": (rates, scores["ter"].signature),
        }
        if comet:
            found_scores, signature = comet[name]
            lines[name]["comet"] = [round(score, 2) for score in found_scores], signature
    return results, lines


def standing_in(training: Iterable[str], wanted: set[str]) -> set[str]:
    """Those of the `wanted` lines (joined ones) that stand in the `training` text, which is streamed and not held."""
    return {joined for line in training if (joined := join_whitespace(line)) in wanted}


def _looks(texts: Texts) -> dict[str, Any]:
    """Lengths of the sides of a set, and what is wrong with its translations."""
    lines = len(texts.sources)
    sides = {"source": texts.sources, "reference": texts.references, "hypothesis": texts.hypotheses}
    same = sum(hypothesis == source and not is_blank(source) for hypothesis, source in zip(texts.hypotheses, texts.sources, strict=True))
    sources = [set(line.split()) for line in texts.sources]
    words = {name: sum(len(line.split()) for line in side) for name, side in sides.items()}
    copied = {
        name: sum(word in source for line, source in zip(sides[name], sources, strict=True) for word in line.split())
        for name in ("reference", "hypothesis")
    }
    return {
        "words": words,
        "blank_lines": {name: sum(map(is_blank, side)) for name, side in sides.items()},
        "share_equal_to_source": round(same / lines, 4),
        # of the words; the references tell how much of that is right, as below
        "share_copied": {name: round(count / max(1, words[name]), 4) for name, count in copied.items()},
        # one to four words three times in a row
        "share_repeating": {name: round(sum(map(repeats, side)) / lines, 4) for name, side in sides.items()},
    }


def _nothing() -> None:
    return None
