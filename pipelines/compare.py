"""`python -m pipelines.compare A B [...]`: what differs between models, by how much, and whether that is more than noise.

A and B are git revisions, DVC experiments or `workspace`; the first is the baseline. With --seeds each stands for itself and all
experiments that are the same but for the seed. Prints a table and writes comparison.json, comparison.md and comparison.html (a page that
needs nothing beside itself) into the folder --to; --artifact leaves the Markdown in Prefect too.

Exit codes: 0 done, whatever the verdict; 2 the request cannot be met, for a reason that is printed; 130 stopped.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines import dvc
from pipelines.comparison import compare
from pipelines.repro import start_server  # sets Prefect up, so before it
from pipelines.revisions import model, siblings
from pipelines.telling import telling

from prefect import State, flow  # isort: skip
from prefect.artifacts import create_markdown_artifact  # isort: skip
from prefect.states import Completed, Failed  # isort: skip

COSTS = {
    "parameters": "parameters",
    "updates": "updates",
    "tokens": "target tokens",
    "flop": "FLOP",
    "seconds": "seconds, here",
    "tokens_per_second": "target tokens a second, here",
}
Rows = list[list[str]]


def tables(document: dict[str, Any]) -> list[tuple[str, list[str], Rows]]:
    """The document as titled tables, head and rows: what the terminal and the Markdown show."""
    names = [side["name"] for side in document["sides"]]
    found = []
    for name, one in document["sets"].items():
        rows = [[metric, *(_score(value) for value in scored["values"])] for metric, scored in one["scores"].items()]
        for pair in one["pairs"]:
            for metric, tested in pair["tests"].items():
                against = f" of {names[pair['side']]}" if len(names) > 2 else ""
                rows.append([f"p of {metric}{against}, bootstrap", *_at(pair["side"], names, f"{tested['bootstrap_p']:.4f}")])
                rows.append([f"p of {metric}{against}, randomization", *_at(pair["side"], names, f"{tested['randomization_p']:.4f}")])
            if pair["seeds"]:
                seeds = pair["seeds"]
                rows.append(["mean of the seeds", *_at(pair["side"], names, f"{seeds['means'][1]:.2f}", f"{seeds['means'][0]:.2f}")])
                deviations = ["none" if deviation is None else f"{deviation:.2f}" for deviation in seeds["deviations"]]
                rows.append(["deviation between seeds", *_at(pair["side"], names, deviations[1], deviations[0])])
                if seeds["p"] is not None:
                    rows.append(["p over seeds and sentences", *_at(pair["side"], names, f"{seeds['p']:.4f}")])
        found.append((f"{name}, {one['lines']:,} lines", ["", *names], rows))
    lengths = next(one for name, one in document["sets"].items() if name != "valid")["pairs"][0]["lengths"]
    bucket = [[_range(row["first"], row["last"]), f"{row['lines']:,}", *(f"{score:.2f}" for score in row["bleu"])] for row in lengths]
    found.append(("BLEU by words of the source (of effective order)", ["words", "lines", *names[:2]], bucket))
    for title, key, label in (("Parameters that differ", "parameters", "name"), ("Data that differ, by hash", "data", "path")):
        found.append((title, ["", *names], [[row[label], *(_short(value) for value in row["values"])] for row in document[key]]))
    code = [[row["path"], ", ".join(row["stages"])] for row in document["code"]]
    found.append(("Code that differs", ["file", "stages that run on it"], code))
    lines = [[row["set"], *("none" if value is None else f"{value:,}" for value in row["values"])] for row in document["lines"]]
    found.append(("Lines of the raw text", ["", *names], lines))
    costs = [side["cost"] for side in document["sides"]]
    cost = [[title, *(_number(one.get(key)) for one in costs)] for key, title in COSTS.items()]
    found.append(("Cost of the training", ["", *names], cost))
    return [table for table in found if table[2]]


def markdown(document: dict[str, Any]) -> str:
    """The comparison for a pull request or an artifact: verdict, tables, the lines that changed most."""
    parts = [f"# {document['model']}: {' against '.join(side['name'] for side in document['sides'])}", f"**{document['verdict']}**"]
    parts += [f"> {warning}" for warning in document["warnings"]]
    for title, head, rows in tables(document):
        parts += [f"## {title}", _markdown_table(head, rows)]
    test = next(one for name, one in document["sets"].items() if name != "valid")
    for kind in ("wins", "losses"):
        if rows := test["pairs"][0][kind]:
            names = [document["sides"][side]["name"] for side in (0, test["pairs"][0]["side"])]
            shown = [[str(row["line"]), f"{row['gain']:+.1f}", row["source"], row["reference"], *row["hypotheses"]] for row in rows]
            parts += [f"## Largest {kind}, by chrF", _markdown_table(["line", "chrF", "source", "reference", *names], shown)]
    signatures = [f"- {metric}: `{score['signature']}`" for metric, score in test["scores"].items()]
    return "\n\n".join([*parts, "## Signatures", "\n".join(signatures)]) + "\n"


def show(document: dict[str, Any], console: Console) -> None:
    """Print the tables and, last, the verdict."""
    for title, head, rows in tables(document):
        table = Table(title=escape(title), title_justify="left")
        for index, cell in enumerate(head):
            table.add_column(escape(cell), justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    for warning in document["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    console.print(f"[bold]{escape(document['verdict'])}[/bold]", soft_wrap=True)


def write(document: dict[str, Any], folder: Path) -> Path:
    """Write comparison.json, .md and .html; returns the last. Raises DvcError where the page cannot be made."""
    folder.mkdir(parents=True, exist_ok=True)
    facts, page = folder / "comparison.json", folder / "comparison.html"
    facts.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "comparison.md").write_text(markdown(document), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "stages.comparison", str(facts), str(page)], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise dvc.DvcError(f"the page could not be made: {done.stderr.strip()}")
    return page


def comparison_of(revisions: Sequence[str], name: str | None, seeds: bool) -> dict[str, Any]:
    """The comparison of `revisions`, of the model `name` where they have several. Raises DvcError where there is none to make."""
    if len(revisions) < 2:
        raise dvc.DvcError("two revisions at least are compared")
    with telling("compare") as tell:
        tell("reading the revisions")
        firsts = [model(revision, name) for revision in revisions]
        sides = [siblings(one) for one in firsts] if seeds else [[one] for one in firsts]
        return compare(sides, revisions, tell)


@flow(name="compare", persist_result=False)
def compare_models(revisions: list[str], model: str | None = None, seeds: bool = False, to: str = "comparison") -> State[None]:
    """Compare git revisions, DVC experiments or `workspace`, the first being the baseline, and leave the comparison as an artifact.

    `model` says which one where a revision has several (demo-tiny); with `seeds` each stands for all experiments that differ in the seed
    alone. The files go into the folder `to`.
    """
    try:
        document = comparison_of(revisions, model, seeds)
        page = write(document, Path(to))
    except dvc.DvcError as error:
        return Failed(message=str(error))
    create_markdown_artifact(markdown(document), key="comparison", description=document["verdict"])
    show(document, Console())
    return Completed(message=f"{document['verdict']} The page is {page}")


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.compare", description="Compare models: what differs, and is it noise?")
    parser.add_argument(
        "revisions", nargs="+", metavar="REVISION", help="a git revision, a DVC experiment or `workspace`; the first is the baseline"
    )
    parser.add_argument("--model", help="which one, where a revision has several: demo-tiny is that of score@demo-tiny")
    parser.add_argument("--seeds", action="store_true", help="each revision stands for all experiments that are the same but for the seed")
    parser.add_argument("--to", type=Path, default=Path("comparison"), metavar="FOLDER", help="where the files go (comparison)")
    parser.add_argument("--artifact", action="store_true", help="leave the Markdown in Prefect too")
    options = parser.parse_args()
    if len(options.revisions) < 2:
        parser.error("two revisions at least are compared")
    try:
        if options.artifact:
            start_server()
            state = compare_models(options.revisions, options.model, options.seeds, str(options.to), return_state=True)
            if state.is_failed():
                raise dvc.DvcError(str(state.message))
        else:
            document = comparison_of(options.revisions, options.model, options.seeds)
            page = write(document, options.to)
            show(document, Console())
            print(f"\npage: {page}")
    except dvc.DvcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [list(head), ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |" for row in cells)


def _score(value: dict[str, Any] | None) -> str:
    if value is None:
        return "none"
    return f"{value['score']:.2f}" + ("" if value["confidence"] is None else f" ± {value['confidence']:.2f}")


def _range(first: int, last: int) -> str:
    return f"{first} to {last}" if last > first else str(first)


def _at(side: int, names: Sequence[str], text: str, first: str = "") -> list[str]:
    """A row of empty cells but for the text of one side, and of the first."""
    return [first if index == 0 else text if index == side else "" for index in range(len(names))]


def _short(value: Any) -> str:
    """A value for a cell; of a hash its beginning."""
    text = "none" if value is None else str(value)
    return text[:12] if len(text) >= 32 and " " not in text else text


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2e}" if isinstance(value, float) and value >= 1e6 else f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
