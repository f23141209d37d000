"""The proof that an exported model says what the model says: both translate one text, with the same search.

The search is the one that all engines have: scores are log probability / length^alpha, and a sentence ends when as many hypotheses have
ended as there are beams. (`nmt translate` has a better one: Wu's penalty and an exact stop.) Beside the lines, the engine's scores are
compared with those that this model gives to the same tokens, which tells a wrong weight from another choice between two equally good lines.

proof.json, beside the exported model:
{"engine": "ctranslate2 4.8.5", "precision": "float32", "arithmetic": "float32 on cpu", "proven": true,
 "model": {"weights_sha256": "…", "tokenizer_sha256": "…"}, "text": {"source": "valid.en", "source_sha256": "…", …, "lines": 1000},
 "search": {"beam_size": 4, "alpha": 0.6, "max_length_offset": 50},
 "too_long": 0, "compared": 998, "cut": 0, "tokenized_otherwise": 0, "identical": 997, "identical_share": 0.999,
 "largest_score_difference": 2.1e-06, "bleu": {"nmt": {"score": 31.9, "signature": "…"}, "engine": {…}},
 "differing": [{"number": 12, "source": "…", "nmt": "…", "engine": "…", "margin": 1.3e-06, "why": "tie"}, …]}

Lines are `compared` unless blank or longer than the engine's positions reach (`too_long`). `cut` ones were still without an end at the
greatest length, where engines do as they like, so that `identical` and its share are of the others. `margin` is by how much this model
finds its own translation better than the engine's, in score: near 0 the two are tied.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Any, Protocol

import torch
from rich.table import Table

from nmt.bundle import Bundle
from nmt.lines import is_blank
from nmt.rescoring import rescore
from nmt.scoring import bleu
from nmt.search import DecodeConfig
from nmt.translation import NOT_IN_A_LINE, Translation, Translator

IDENTICAL = 0.995  # the share of the lines that float32 must give as this model does
SCORES = 1e-3  # the most by which float32's scores may differ
BLEU_LOSS = 0.3  # the most that float16 and int8 may cost
SENTENCES = 32  # that an engine gets at once
SHOWN = 5  # differing lines, on the terminal


@dataclass(frozen=True)
class Search:
    """What both engines are told."""

    beam_size: int = 4
    alpha: float = 0.6
    max_length_offset: int = 50


@dataclass(frozen=True)
class Found:
    """An engine's translation of a line."""

    text: str
    source: list[int]  # the tokens that it read, without end symbol
    ids: list[int]  # the tokens that it wrote, without begin and end symbols
    score: float  # by the engine: log probability / length^alpha, the end symbol counted
    finished: bool  # false where it was cut at the greatest length


class Engine(Protocol):
    """An engine that has loaded an exported model."""

    name: str  # with its version
    arithmetic: str  # of what numbers, and where
    positions: int  # tokens of a side, end symbol counted, beyond which it cannot go

    def translate(self, lines: Sequence[str], longest: int, search: Search) -> list[Found]:
        """The best translation of each line, of at most `longest` tokens with the end symbol."""
        ...


@dataclass(frozen=True)
class Text:
    """Sources and references, line by line, and what to call them."""

    source_name: str
    reference_name: str
    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class _Line:
    """What came out for a line that was translated."""

    number: int  # from 1
    source: str
    nmt: str
    engine: str
    margin: float
    score_difference: float  # between the engine's score and this model's, of the engine's translation
    cut: bool
    tokenized_otherwise: bool

    def why(self, precision: str) -> str:
        """Why the two translations may differ, in a word."""
        if self.cut:
            return "cut"
        if self.tokenized_otherwise:
            return "tokenized otherwise"
        if abs(self.margin) <= SCORES:
            return "tie"
        return "unexplained" if precision == "float32" else "precision"


def prove(
    bundle: Bundle,
    engine: Engine,
    precision: str,
    text: Text,
    search: Search,
    device: torch.device,
    tokens: int,
    report: Callable[[int, float], None],
) -> dict[str, Any]:
    """The content of proof.json. `report` is told lines and their characters as they are done, each twice: by the model and by the engine.

    The model decodes at most `tokens` padded source tokens at once.
    """
    sources = bundle.tokenizer.encode(text.sources)
    fits = [len(source) + search.max_length_offset + 1 <= engine.positions for source in sources]
    kept = list(compress(range(len(sources)), fits))
    report(2 * (len(sources) - len(kept)), 2.0 * (sum(map(len, text.sources)) - sum(len(text.sources[i]) for i in kept)))
    ours = _own(bundle, [text.sources[i] for i in kept], search, device, tokens, report)
    theirs = _engine(bundle, engine, [text.sources[i] for i in kept], search, report)
    scores = rescore(bundle.model, [sources[i] for i in kept], [found.ids for found in theirs])
    said = [found.text.translate(NOT_IN_A_LINE) for found in theirs]
    lines = []
    for i, own, found, score, line in zip(kept, ours, theirs, scores, said, strict=True):
        if not is_blank(text.sources[i]):
            penalty = (len(found.ids) + 1) ** search.alpha
            margin, difference = own.score - score.plain / penalty, abs(found.score - score.producible / penalty)
            cut, otherwise = not (own.finished and found.finished), found.source != sources[i]
            lines.append(_Line(i + 1, text.sources[i], own.text, line, margin, difference, cut, otherwise))
    ended = [line for line in lines if not line.cut]
    identical = sum(line.nmt == line.engine for line in ended)
    differences = [line.score_difference for line in ended if not line.tokenized_otherwise]
    references = [text.references[i] for i in kept]
    proof: dict[str, Any] = {
        "engine": engine.name,
        "precision": precision,
        "arithmetic": engine.arithmetic,
        "model": {"weights_sha256": bundle.config["weights_sha256"], "tokenizer_sha256": bundle.tokenizer.sha256},
        "text": {
            "source": text.source_name,
            "source_sha256": _sha256(text.sources),
            "reference": text.reference_name,
            "reference_sha256": _sha256(text.references),
            "lines": len(text.sources),
        },
        "search": asdict(search),
        "too_long": len(sources) - len(kept),
        "compared": len(lines),
        "cut": len(lines) - len(ended),
        "tokenized_otherwise": sum(line.tokenized_otherwise for line in lines),
        "identical": identical,
        "identical_share": identical / max(len(ended), 1),
        "largest_score_difference": max(differences, default=0.0, key=lambda x: (math.isnan(x), x)),
        "bleu": {"nmt": _bleu([own.text for own in ours], references), "engine": _bleu(said, references)},
        "differing": [
            {name: getattr(line, name) for name in ("number", "source", "nmt", "engine", "margin")} | {"why": line.why(precision)}
            for line in lines
            if line.nmt != line.engine
        ],
    }
    return {"proven": not failures(proof), **proof}


def failures(proof: dict[str, Any]) -> list[str]:
    """What the exported model does not hold to, in words; nothing when it is proven."""
    difference, share = proof["largest_score_difference"], proof["identical_share"]
    loss = round(proof["bleu"]["nmt"]["score"] - proof["bleu"]["engine"]["score"], 2)
    if proof["compared"] == proof["cut"]:
        return ["no line came to its end, so nothing could be compared"]
    if math.isnan(difference):
        return ["a score is no number"]
    if proof["precision"] != "float32":
        return [f"{proof['precision']} costs {loss:.2f} BLEU, which may be {BLEU_LOSS}"] if loss > BLEU_LOSS else []
    said = [f"only {100 * share:.2f} % of the lines are identical, of {100 * IDENTICAL} %"] if share < IDENTICAL else []
    return said + ([f"a score differs by {difference:.2g}, which may be {SCORES:g}"] if difference > SCORES else [])


def tables(proof: dict[str, Any]) -> Iterator[Table | str]:
    """The proof for people: the figures, the signatures, and the first lines that differ."""
    table = Table(title=f"{proof['engine']}, {proof['precision']} weights, {proof['arithmetic']}", show_header=False, title_justify="left")
    scores = proof["bleu"]
    for name, value in (
        ("lines compared", f"{proof['compared']:,} of {proof['text']['lines']:,} in {proof['text']['source']}"),
        ("identical", f"{proof['identical']:,} ({100 * proof['identical_share']:.2f} %)"),
        ("cut at the greatest length", f"{proof['cut']:,}"),
        ("read as other tokens", f"{proof['tokenized_otherwise']:,}"),
        ("largest difference of a score", f"{proof['largest_score_difference']:.2g}"),
        ("BLEU, nmt", f"{scores['nmt']['score']:.2f}"),
        (f"BLEU, {proof['engine']}", f"{scores['engine']['score']:.2f}"),
    ):
        table.add_row(name, value)
    yield table
    for side in dict.fromkeys(scores[side]["signature"] for side in ("nmt", "engine")):
        yield f"BLEU {side}"
    if proof["differing"]:
        shown = Table("line", "", "text", title=f"the first {min(SHOWN, len(proof['differing']))} lines that differ", title_justify="left")
        for one in proof["differing"][:SHOWN]:
            shown.add_row(str(one["number"]), "source", one["source"])
            shown.add_row("", "nmt", one["nmt"])
            shown.add_row("", "engine", one["engine"])
            shown.add_row("", "margin", f"{one['margin']:.2g}, {one['why']}", end_section=True)
        yield shown


def _own(
    bundle: Bundle, sources: Sequence[str], search: Search, device: torch.device, tokens: int, report: Callable[[int, float], None]
) -> list[Translation]:
    config = DecodeConfig(
        beam_size=search.beam_size,
        penalty="length",
        length_penalty=search.alpha,
        max_length_offset=search.max_length_offset,
        stop="beam_filled",
        precision="float32",
    )
    results = Translator(bundle, config, device, tokens).translate(sources, report=report)
    blank = Translation("", 0.0, 0.0, 0, True)
    return [result[0] if result else blank for result in results]


def _engine(bundle: Bundle, engine: Engine, sources: Sequence[str], search: Search, report: Callable[[int, float], None]) -> list[Found]:
    """The engine's translations, each cut at the greatest length of its own line.

    The engine knows one greatest length a call, that of the longest source: so those of like length go together.
    """
    results = [Found("", [], [], 0.0, True) for _ in sources]
    limits = [len(source) + search.max_length_offset for source in bundle.tokenizer.encode(sources)]
    todo = sorted((i for i, source in enumerate(sources) if not is_blank(source)), key=lambda i: -limits[i])
    report(len(sources) - len(todo), float(sum(map(len, sources)) - sum(len(sources[i]) for i in todo)))
    for start in range(0, len(todo), SENTENCES):
        group = todo[start : start + SENTENCES]
        found = engine.translate([sources[i] for i in group], limits[group[0]] + 1, search)
        for i, one in zip(group, found, strict=True):
            results[i] = one
            if len(one.ids) > limits[i]:
                ids = one.ids[: limits[i]]
                results[i] = replace(one, text=bundle.tokenizer.decode(ids), ids=ids, finished=False)
        report(len(group), float(sum(len(sources[i]) for i in group)))
    return results


def _bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    found = bleu(hypotheses, references)
    return {"score": found.score, "confidence": found.confidence, "signature": found.signature}


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
