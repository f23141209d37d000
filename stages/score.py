"""Stage `score`: translations of valid and of every test set against their references, under every usual metric.

metrics.json, for `dvc metrics diff`: at most eight numbers and no text
{"valid": {"bleu": 27.7, "perplexity": 5.12}, "newstest2014": {"bleu": 26.9, "bleu_unseen": 26.9, "chrf": 57.72}}

scores.json: everything, for each set what `nmt.evaluation.evaluate` says, and
{"sets": {"newstest2014": {"source_sha256": "…", "reference_sha256": "…", "unfinished": 0, "warnings": [], "lines": 3003,
                           "bleu": {"score": 26.9, "confidence": 0.5, "signature": "…", …}, "bleu_moses_split": {…}, …}, …},
 "perplexity": {"average": 5.12, "last": 5.31}}            of valid, per piece

sentences.parquet: a row for each line; the metadata of its schema hold the signatures of the columns chrf, bleu, ter (and comet, if on)
set    line  source   reference   hypothesis   unseen  finished  chrf   bleu   ter   source_words  reference_words  hypothesis_words
valid  1     Turn on  Schalte an  Schalte ein  true    true      71.93  32.47  50.0  2             2                2

lengths.tsv: how many lines of each set have so many words, for a plot
set    words  source  reference  hypothesis
valid  2      1       1          1
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nmt import foreign, shifted
from nmt.comet import CometConfig, ScoreConfig, comet
from nmt.errors import UserError
from nmt.evaluation import LineScores, Texts, evaluate, standing_in
from nmt.hardware import HardwareConfig
from nmt.json_files import read_object
from nmt.languages import Languages
from nmt.lines import join_whitespace, read_exact, read_lines
from nmt.outputs import whole_file
from nmt.remains import remains
from nmt.score_table import show
from nmt.scoring import Scored
from stages import params
from stages.command import run

VALID = "valid"
METRICS_LIMIT = 8  # numbers that a person takes in at a glance


@dataclass(frozen=True)
class Translated:
    """A set: equally many lines of each."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    finished: list[bool]  # false where the best hypothesis was cut at the maximum length


def main(
    section: str, translations: Path, raw: Path, clean: Path, average: Path, metrics: Path, scores: Path, sentences: Path, lengths: Path
) -> None:
    """Score all sets of the corpus `section` and print one table with the signatures.

    Raises UserError for unequal numbers of lines and for text that cannot be scored; no file is written then.
    """
    languages = params.load(f"{section}.languages", Languages)
    settings = params.load("score", ScoreConfig)
    names = [VALID, *params.value(f"{section}.test")]
    read = {name: read_set(name, translations, raw, languages) for name in names}
    training = [clean / f"train.{language}" for language in (languages.src, languages.tgt)]
    known = foreign.Profiles(*(list(islice(read_exact(path), foreign.SAMPLE)) for path in training))
    warnings = {name: _warn(name, texts, known) for name, texts in read.items()}
    comet_scores = _comet(read, settings.comet) if settings.comet else None  # first, for more may be amiss there than anywhere else
    wanted = {join_whitespace(line) for texts in read.values() for line in texts.sources}
    seen = standing_in(read_exact(training[0]), wanted)
    sets = {
        name: Texts(texts.sources, texts.references, texts.hypotheses, [join_whitespace(line) not in seen for line in texts.sources])
        for name, texts in read.items()
    }
    found, lines = evaluate(sets, languages.tgt, comet_scores)
    results = {
        name: {
            "source_sha256": _sha256(texts.sources),
            "reference_sha256": _sha256(texts.references),
            "unfinished": read[name].finished.count(False),
            "warnings": warnings[name],
            **found[name],
        }
        for name, texts in sets.items()
    }
    valid = read_object(average, "valid")["valid"]
    perplexity = {model: round(valid[model]["perplexity"], 3) for model in ("average", "last")}
    with whole_file(metrics) as metrics_file, whole_file(scores) as scores_file, whole_file(sentences) as sentences_file:
        with whole_file(lengths) as lengths_file:
            _write_json(metrics_file, headline(results, perplexity["average"]))
            _write_json(scores_file, {"sets": results, "perplexity": perplexity})
            _write_sentences(sentences_file, sets, {name: texts.finished for name, texts in read.items()}, lines)
            _write_lengths(lengths_file, sets)
    show(results)


def read_set(name: str, translations: Path, raw: Path, languages: Languages) -> Translated:
    """The texts of a set. Raises UserError with all counts when they are not of equally many lines."""
    paths = [raw / f"{name}.{languages.src}", raw / f"{name}.{languages.tgt}", translations / f"{name}.txt"]
    nbest = translations / f"{name}.nbest.jsonl"
    sources, references = (list(read_exact(path)) for path in paths[:2])
    hypotheses, finished = list(read_lines(paths[2])), list(_finished(nbest))
    counts = [len(sources), len(references), len(hypotheses), len(finished)]
    if len(set(counts)) > 1 or counts[0] == 0:
        told = ", ".join(f"{path} has {count:,} lines" for path, count in zip([*paths, nbest], counts, strict=True))
        raise UserError(f"the files of the set {name} do not belong together: {told}; all must have equally many, and at least one")
    return Translated(sources, references, hypotheses, finished)


def headline(results: dict[str, Any], perplexity: float) -> dict[str, dict[str, float]]:
    """The content of metrics.json. What is not there (`bleu_unseen`, `comet`) or beyond the limit is left out."""
    first, *further = [name for name in results if name != VALID]
    numbers = {VALID: {"bleu": results[VALID]["bleu"]["score"], "perplexity": perplexity}}
    numbers[first] = {metric: results[first][metric]["score"] for metric in ("bleu", "bleu_unseen", "chrf") if results[first][metric]}
    room = METRICS_LIMIT - sum(map(len, numbers.values()))
    if "comet" in results[first] and len(further) < room:
        numbers[first]["comet"] = results[first]["comet"]["score"]
    return numbers | {name: {"bleu": results[name]["bleu"]["score"]} for name in further[:room]}


def _finished(nbest: Path) -> Iterator[bool]:
    """Of each line, whether its best hypothesis came to its end; a blank line has none, and nothing to cut."""
    for number, line in enumerate(read_lines(nbest), start=1):
        try:
            hypotheses = json.loads(line)
            yield bool(hypotheses[0]["finished"]) if hypotheses else True
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{nbest}, line {number}: no list of hypotheses ({error!r}); run the stage `translate` again") from None


def _warn(name: str, texts: Translated, known: foreign.Profiles) -> list[str]:
    """What makes the scores of this set doubtful, told on stderr before any of them is computed."""
    try:
        warnings = [
            *remains(texts.hypotheses, texts.references),
            *shifted.judge(texts.sources, texts.references, texts.hypotheses),
            *known.judge(texts.hypotheses, texts.references),
        ]
    except UserError as error:
        raise UserError(f"set {name}: {error}") from None
    for warning in warnings:
        print(f"warning: set {name}: {warning}", file=sys.stderr)
    return warnings


def _comet(read: dict[str, Translated], config: CometConfig) -> dict[str, Scored]:
    texts = {name: (found.sources, found.hypotheses, found.references) for name, found in read.items()}
    return comet(texts, config, params.load("hardware", HardwareConfig).device)


def _sha256(lines: Sequence[str]) -> str:
    """Of the text as it was scored: UTF-8, a `\\n` behind each line."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_sentences(path: Path, sets: dict[str, Texts], finished: dict[str, list[bool]], scores: dict[str, LineScores]) -> None:
    tables = []
    for name, texts in sets.items():
        lines = {"source": texts.sources, "reference": texts.references, "hypothesis": texts.hypotheses}
        words = {f"{side}_words": _words(text) for side, text in lines.items()}
        place = {"set": [name] * len(texts.sources), "line": range(1, len(texts.sources) + 1)}
        values = {metric: found for metric, (found, _) in scores[name].items()}
        table = pa.table({**place, **lines, "unseen": texts.unseen, "finished": finished[name], **values, **words})
        tables.append(table.replace_schema_metadata({metric: signature for metric, (_, signature) in scores[name].items()}))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")


def _write_lengths(path: Path, sets: dict[str, Texts]) -> None:
    rows = ["set\twords\tsource\treference\thypothesis"]
    for name, texts in sets.items():
        counts = [Counter(_words(side)) for side in (texts.sources, texts.references, texts.hypotheses)]
        for words in range(max(max(count) for count in counts) + 1):
            rows.append("\t".join([name, *(str(number) for number in (words, *(count[words] for count in counts)))]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _words(text: Sequence[str]) -> list[int]:
    return [len(line.split()) for line in text]


if __name__ == "__main__":
    run(main)
