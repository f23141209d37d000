"""How the training of a model went, and what it cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from pipelines.revisions import Model

CURVES = {
    "loss": ("training.tsv", "loss"),
    "valid_loss": ("training.tsv", "valid_loss"),
    "valid_perplexity": ("training.tsv", "valid_perplexity"),
    "learning_rate": ("training.tsv", "learning_rate"),
    "bleu": ("curve.tsv", "bleu"),
}
POINTS = 300  # of a curve
FLOP = 6  # a parameter and token, forward and backward: Kaplan et al. 2020, section 2.1


def cost(model: Model) -> dict[str, Any]:
    """Parameters, updates, target tokens, training FLOP (6 a parameter and token) and speed, as far as they are known."""
    path = model.paths.get("averaged")
    config = YAML(typ="safe", pure=True).load(model.files.read_text(f"{path}/config.json")) if path else {}
    table = model.table("training.tsv")
    answer: dict[str, Any] = {"parameters": config.get("parameters")}
    if table is not None and len(table):
        answer |= {"updates": int(table["update"].iloc[-1]), "tokens": int(table["tokens"].iloc[-1])}
        if answer["parameters"]:
            answer["flop"] = float(FLOP * answer["parameters"] * answer["tokens"])
    return {**answer, **speed(model)}


def speed(model: Model) -> dict[str, float]:
    """Seconds of the training and its target tokens a second, where this machine still has the scratch folder that it ran in.

    The folder is known by the last checkpoint, whose hash stands in average.json.
    """
    average = model.json("average.json")
    scratch = (
        YAML(typ="safe", pure=True).load(Path("params.yaml").read_text(encoding="utf-8")).get("hardware", {}).get("scratch", ".scratch")
    )
    if not average or not average["checkpoints"]:
        return {}
    last = average["checkpoints"][-1]
    for table in Path(scratch).glob("train/*/speed.tsv"):
        for state in table.parent.glob(f"checkpoints/*{last['step']}/state.json"):
            if last["sha256"] in state.read_text(encoding="utf-8"):
                rows = pd.read_csv(table, sep="\t")
                spent = rows.drop_duplicates("update", keep="last")["seconds"].sum()  # a resumed training has done some updates twice
                return {"seconds": round(float(spent), 1), "tokens_per_second": round(float(rows["tokens_per_second"].median()))}
    return {}


def curves(models: Sequence[Model]) -> dict[str, list[dict[str, Any]]]:
    """The training curves that at least one model has, thinned to some hundred points."""
    found: dict[str, list[dict[str, Any]]] = {}
    tables = {file: [model.table(file) for model in models] for file in ("training.tsv", "curve.tsv")}
    for name, (file, column) in CURVES.items():
        for side, table in enumerate(tables[file]):
            if table is not None and column in table and table[column].notna().any():
                points = table[["update", column]].dropna()
                points = points.iloc[:: max(1, len(points) // POINTS)]
                found.setdefault(name, []).append({"side": side, "x": points["update"].tolist(), "y": points[column].tolist()})
    return found
