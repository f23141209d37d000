"""What two or more models have in common and what not, as one JSON document, and its verdict in one sentence.

{"model": "demo-tiny", "sides": [{"name": "HEAD", "revisions": ["HEAD"], "seeds": [2017], "cost": {…}}, …],
 "verdict": "…", "warnings": ["…"],
 "parameters": [{"name": "variants.tiny.model.dropout", "values": [0.0, 0.1]}], "code": [{"path": "nmt/x.py", "stages": ["train"]}],
 "data": [{"path": "data/demo/raw", "values": ["9f86…", "c053…"]}], "lines": [{"set": "train", "values": [54000, 53000]}],
 "sets": {"test": {"lines": 4307, "source_sha256": "…", "reference_sha256": "…",
                   "scores": {"bleu": {"signature": "…", "values": [{"score": 31.9, "confidence": 2.2}, …]}, …},
                   "pairs": [{"side": 1, "tests": {"bleu": {…}}, "seeds": null, "same_lines": 0.2,
                              "lengths": […], "wins": […], "losses": […]}]}},
 "curves": {"loss": [{"side": 0, "x": [50, …], "y": [8.1, …]}], …}}

The first side is the baseline; `pairs` hold each other side against it. Every value in a list `values` belongs to the side of that index.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from ruamel.yaml import YAML

from pipelines import dvc, significance
from pipelines.cost import cost, curves
from pipelines.revisions import Model
from pipelines.telling import Tell, silent
from pipelines.verdict import VALID, verdict

EXTREME = 8  # wins, and as many losses


def compare(sides: Sequence[Sequence[Model]], names: Sequence[str], tell: Tell = silent) -> dict[str, Any]:
    """The document. Each side is one model, or several seeds of it, of which the first stands for all where one is looked at.

    `tell` is told what it is at. Raises DvcError where no test set can be compared.
    """
    firsts = [side[0] for side in sides]
    scores = [[model.json("scores.json")["sets"] for model in side] for side in sides]
    warnings = [warning for model in firsts for warning in stale(model)]
    common, refused = comparable([one[0] for one in scores], names)
    if not [name for name in common if name != VALID]:
        raise dvc.DvcError("; ".join(refused) or f"{' and '.join(names)} have no test set in common")
    tables = [[_sentences(model) for model in side] for side in sides]
    sets = {
        name: compare_set(name, scores, [[table[table["set"] == name] for table in side] for side in tables], partial(_about, tell, name))
        for name in common
    }
    tell("what differs besides")
    document = {
        "model": firsts[0].name,
        "sides": [
            {
                "name": name,
                "revisions": [model.revision for model in side],
                "seeds": [model.seed for model in side],
                "cost": cost(side[0]),
            }
            for name, side in zip(names, sides, strict=True)
        ],
        "warnings": [*warnings, *refused],
        **differences(firsts),
        "sets": sets,
        "curves": curves(firsts),
    }
    return {"verdict": verdict(document), **document}


def comparable(scores: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The sets whose text is the same on all sides, valid last, and a sentence for each other set that all have."""
    common, refused = [], []
    for name in (name for name in scores[0] if all(name in other for other in scores)):
        counts = [one[name]["lines"] for one in scores]
        texts = {(one[name]["source_sha256"], one[name]["reference_sha256"]) for one in scores}
        if len(set(counts)) > 1:
            told = ", ".join(f"{count:,} in {side}" for side, count in zip(names, counts, strict=True))
            refused.append(f"the set {name} has another number of lines on each side, so it is not compared: {told}")
        elif len(texts) > 1:
            told = ", ".join(f"{one[name]['reference_sha256'][:12]} in {side}" for side, one in zip(names, scores, strict=True))
            refused.append(f"the set {name} is another text on each side, so it is not compared: its references hash to {told}")
        else:
            common.append(name)
    return sorted(common, key=lambda name: name == VALID), refused


def compare_set(
    name: str, scores: Sequence[Sequence[dict[str, Any]]], tables: Sequence[Sequence[pd.DataFrame]], tell: Tell = silent
) -> dict[str, Any]:
    """Everything about one set: the scores of each side, and each other side against the first."""
    first = [side[0][name] for side in scores]
    signatures: dict[str, str] = {}  # in the order of scores.json; of two the baseline's counts
    for one in first:
        for metric, value in one.items():
            if isinstance(value, dict) and "signature" in value:
                signatures.setdefault(metric, value["signature"])
    found = {
        metric: {"signature": signature, "values": [_score(one.get(metric), signature) for one in first]}
        for metric, signature in signatures.items()
    }
    pairs = [compare_pair(side, tables[0], tables[side], tell) for side in range(1, len(tables))]
    facts = {key: first[0][key] for key in ("lines", "source_sha256", "reference_sha256")}
    return {**facts, "scores": found, "pairs": pairs}


def compare_pair(side: int, baselines: Sequence[pd.DataFrame], systems: Sequence[pd.DataFrame], tell: Tell = silent) -> dict[str, Any]:
    """One side against the first, on the lines of one set: tests, seeds, lengths, the lines that changed most."""
    one, other = baselines[0], systems[0]
    references = list(one["reference"])
    texts = [[list(table["hypothesis"]) for table in tables] for tables in (baselines, systems)]
    tests = significance.paired(texts[0][0], texts[1][0], references, tell)
    seeds = None
    if max(map(len, texts)) > 1:
        tell("the seeds")
        seeds = significance.compare_seeds(texts[0], texts[1], references)
    same = float((one["hypothesis"].to_numpy() == other["hypothesis"].to_numpy()).mean())
    return {
        "side": side,
        "tests": {metric: asdict(found) for metric, found in tests.items()},
        "seeds": seeds and asdict(seeds),
        "same_lines": round(same, 4),
        "lengths": by_length(one, other),
        **extremes(one, other),
    }


def by_length(one: pd.DataFrame, other: pd.DataFrame) -> list[dict[str, Any]]:
    """BLEU and mean chrF of the lines of 1, 2, 3 to 4, 5 to 8, 9 to 16, … words of source."""
    words = one["source_words"].to_numpy()
    powers = np.array([int(count - 1).bit_length() if count else -1 for count in words])
    rows = []
    for power in sorted(set(powers[powers >= 0].tolist())):
        chosen = powers == power
        parts = [table[chosen] for table in (one, other)]
        rows.append(
            {
                "first": (1 << power >> 1) + 1,
                "last": 1 << power,
                "lines": int(chosen.sum()),
                "bleu": [significance.corpus_bleu(list(part["hypothesis"]), list(part["reference"])) for part in parts],
                "chrf": [round(float(part["chrf"].mean()), 2) for part in parts],
            }
        )
    return rows


def extremes(one: pd.DataFrame, other: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The lines whose chrF rose most and fell most, of those not shorter than the middle one, no source twice."""
    table = one[["line", "source", "reference", "reference_words"]].copy()
    table["hypotheses"] = list(zip(one["hypothesis"], other["hypothesis"], strict=True))
    table["chrf"] = list(zip(one["chrf"], other["chrf"], strict=True))
    table["gain"] = other["chrf"].to_numpy() - one["chrf"].to_numpy()
    table = table[table["reference_words"] >= table["reference_words"].median()].drop_duplicates("source")
    answer = {}
    for kind, ascending, sign in (("wins", False, 1), ("losses", True, -1)):
        found = table[sign * table["gain"] > 0].sort_values(["gain", "line"], ascending=[ascending, True]).head(EXTREME)
        records: list[dict[str, Any]] = json.loads(found.to_json(orient="records"))
        columns = ("line", "source", "reference", "hypotheses", "chrf")
        answer[kind] = [{**{column: row[column] for column in columns}, "gain": round(row["gain"], 2)} for row in records]
    return answer


def differences(models: Sequence[Model]) -> dict[str, list[dict[str, Any]]]:
    """Parameters, code and data that are not the same for all, as far as the models come from them."""
    parameters: dict[str, list[Any]] = {}
    for side, model in enumerate(models[1:], start=1):
        for name, found in dvc.difference("params", models[0].revision, model.revision).items():
            if any(_part_of(name, one.parameters) for one in (models[0], model)):
                values = parameters.setdefault(name, [found.get("old")] * len(models))
                values[side] = found.get("new")
    code = sorted({path for model in models for path in model.code if len({one.code.get(path) for one in models}) > 1})
    corpus = [path for path in models[0].data if path not in models[0].paths.values()]
    manifests = [model.manifest() or {"sets": {}} for model in models]
    sets = dict.fromkeys(name for manifest in manifests for name in manifest["sets"])
    return {
        "parameters": [{"name": name, "values": values} for name, values in parameters.items()],
        "code": [{"path": path, "stages": _users(path, models)} for path in code],
        "data": [
            {"path": path, "values": [model.data.get(path) for model in models]}
            for path in corpus
            if len({model.data.get(path) for model in models}) > 1
        ],
        "lines": [{"set": name, "values": [manifest["sets"].get(name, {}).get("lines") for manifest in manifests]} for name in sets],
    }


def stale(model: Model) -> list[str]:
    """Why the results of a model are perhaps not those of its revision: parameters or files changed since they were made."""
    found = YAML(typ="safe", pure=True).load(model.files.read_text("params.yaml"))
    changed = [name for name, value in model.parameters.items() if _look_up(found, name) != value]
    warnings = []
    if changed:
        some = ", ".join(changed[:3])
        warnings.append(f"{model.revision}: the results were made with another {some} than params.yaml has now: run `dvc repro`")
    if model.revision == dvc.WORKSPACE:
        for name in ("scores.json", "sentences.parquet"):
            content = model.bytes(name)
            if content is not None and hashlib.md5(content).hexdigest() != model.data[model.paths[name]]:
                warnings.append(f"{model.revision}: {model.paths[name]} is not the one that dvc.lock records: run `dvc repro`")
    return warnings


def _about(tell: Tell, name: str, what: str) -> None:
    tell(f"{name}, {what}")


def _sentences(model: Model) -> pd.DataFrame:
    table = model.table("sentences.parquet")
    if table is None:
        raise dvc.DvcError(f"{model.revision} has no sentences.parquet of {model.name}: run `dvc repro` there")
    return table


def _score(found: dict[str, Any] | None, signature: str) -> dict[str, Any] | None:
    """The score of a side, if it has one that was computed in the same way; intervals may be missing from older files."""
    if found is None or _bare(found["signature"]) != _bare(signature):
        return None
    return {"score": found["score"], "confidence": found.get("confidence")}


def _bare(signature: str) -> list[str]:
    """A signature without what belongs to the interval."""
    return [part for part in signature.split("|") if not part.startswith(("bs:", "seed:"))]


def _part_of(name: str, parameters: dict[str, Any]) -> bool:
    """Whether a dotted name is a parameter of the stages, or lies above or below one (a whole section that is new)."""
    return any(one == name or one.startswith(f"{name}.") or name.startswith(f"{one}.") for one in parameters)


def _look_up(values: Any, name: str) -> Any:
    """The value with a dotted name. Names of corpora may hold no dots, so this is not ambiguous."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _users(path: str, models: Sequence[Model]) -> list[str]:
    """The stages that run on a code file."""
    return sorted(
        {
            stage.partition("@")[0]
            for model in models
            for stage, content in model.stages.items()
            if path in (dep["path"] for dep in content.get("deps", []))
        }
    )
