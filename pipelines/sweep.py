"""`python -m pipelines.sweep table3`: every row of a table of variants as an experiment of its own, then one table of all.

    python -m pipelines.sweep table3 --corpus demo                            the rows scaled for a laptop
    python -m pipelines.sweep table3 --over base --corpus wmt14-en-de --rows base,A1,C1 --seeds 1,2,3

The rows stand in pipelines/<name>.yaml as changes of a variant. Each runs in a git worktree of the present commit that shares the cache
(so the data stages run once), and is kept as a DVC experiment: `dvc exp show --only-changed`. A row that fails is named at the end and
keeps no other from running. The same command goes on where it was stopped or killed, and runs no finished row again: one is finished when
its experiment stands on the present commit with the same parameters; on another commit DVC decides by its cache.

The table is printed, kept in runs/<corpus>/<name>-<variant>.md and .csv, and is an artifact of the flow.
Exit codes: as of `pipelines.repro`.
"""

import argparse
import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from pipelines import dvc, experiments, slots, workspaces  # the second sets Prefect up, so before it
from pipelines.experiments import MADE_OF, PARAMS, read_params
from pipelines.repro import GRACE, LAST_LINES, LOGS, CheckFailed, check, run_stage, start_server, stopped_with_the_flow

from prefect import State, flow, get_run_logger, task  # isort: skip
from prefect.artifacts import create_markdown_artifact  # isort: skip
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Cancelled, Completed, Failed  # isort: skip
from prefect.task_runners import ThreadPoolTaskRunner  # isort: skip

TABLES = Path("pipelines")
VALID = "valid"


class SweepError(Exception):
    """The request or the table is wrong. The message is one sentence."""


@dataclass(frozen=True)
class Sweep:
    """What was asked for."""

    name: str  # of the table
    over: str  # the variant that its rows change
    corpus: str

    @property
    def metrics(self) -> str:
        """Where a row's experiment keeps its scores."""
        return f"runs/{self.corpus}/{self.over}/metrics.json"

    @property
    def result(self) -> Path:
        """Where the table goes, without its suffix."""
        return Path("runs") / self.corpus / f"{self.name}-{self.over}"


@dataclass(frozen=True)
class Run:
    """One row with one seed."""

    row: str
    seed: int
    experiment: str  # its name, and its workspace's
    changed: str  # the row's own changes, for people
    params: dict[str, Any]  # the whole of its params.yaml


def runs_of(sweep: Sweep, params: Any, rows: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """The runs of `rows` (none: all), in the table's order, each with every seed (none: that of params.yaml). Raises SweepError."""
    table = read_table(sweep.name)
    if sweep.corpus not in params["corpora"]:
        raise SweepError(f"{PARAMS} has no corpus {sweep.corpus}: known are {', '.join(params['corpora'])}")
    if sweep.over not in table["variants"]:
        raise SweepError(f"{sweep.name} has no rows over {sweep.over}: known are {', '.join(table['variants'])}")
    changes = table["variants"][sweep.over]
    if unknown := [row for row in rows if row not in changes["rows"]]:
        raise SweepError(f"{sweep.name} has no row {', '.join(unknown)}: known are {', '.join(changes['rows'])}")
    if wrong := [seed for seed in seeds if not 0 <= seed < 1 << 63]:
        raise SweepError(f"the seed {wrong[0]} cannot be: a whole number from 0 to 2^63 - 1 is needed")
    found = []
    for row, own in changes["rows"].items():
        for seed in seeds or [params["seed"]] if not rows or row in rows else []:
            values = deepcopy(params)
            for name, value in {**changes["common"], **own}.items():
                part, _, key = name.partition(".")
                section = values["variants"][sweep.over]
                if key not in section.get(part, {}):
                    raise SweepError(f"{sweep.name}, row {row}: variants.{sweep.over} has no {name}")
                section[part][key] = value
            values["seed"] = seed
            values["reproduce"].update({"corpora": [sweep.corpus], "variants": [sweep.over], "curves": []})
            changed = ", ".join(f"{name.partition('.')[2]} {value}" for name, value in own.items())
            found.append(Run(row, seed, f"{sweep.name}-{sweep.over}-{sweep.corpus}-{row}-{seed}", changed, values))
    return found


def read_table(name: str) -> Any:
    """The content of pipelines/<name>.yaml: what the paper found and what each row changes."""
    return YAML(typ="safe", pure=True).load((TABLES / f"{name}.yaml").read_text(encoding="utf-8"))


def scores_of(sweep: Sweep, run: Run, commit: str) -> dict[str, Any] | None:
    """The metrics of a finished run, None of any other."""
    revision = dvc.experiment(commit, run.experiment)
    params, metrics = workspaces.committed(revision, PARAMS), workspaces.committed(revision, sweep.metrics)
    if params is None or metrics is None or YAML(typ="safe", pure=True).load(params) != run.params:
        return None
    return dict(json.loads(metrics))


def parameters_of(sweep: Sweep) -> dict[str, int]:
    """How many parameters the model of each row has. Raises SweepError with the complaint of `stages.forecast`."""
    command = [sys.executable, "-m", "stages.forecast", sweep.over, sweep.corpus, "--table", str(TABLES / f"{sweep.name}.yaml"), "--csv"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise SweepError(done.stderr.strip().removeprefix("error: "))
    return dict(pd.read_csv(io.StringIO(done.stdout), keep_default_na=False).itertuples(index=False))


def table_of(
    runs: Sequence[Run], scores: Sequence[dict[str, Any] | None], parameters: dict[str, int], paper: dict[str, Any]
) -> pd.DataFrame:
    """One line a row: mean and sample standard deviation, over the seeds, of what the finished runs scored; the paper's numbers beside."""
    columns = ("perplexity", "bleu valid", "bleu test")
    lines = []
    for run, found in zip(runs, scores, strict=True):
        line: dict[str, Any] = {"row": run.row, "changed": run.changed, "parameters": parameters[run.row], "seeds": int(found is not None)}
        if found:
            test = next(values for name, values in found.items() if name != VALID)
            line |= dict(zip(columns, (found[VALID]["perplexity"], found[VALID]["bleu"], test["bleu"]), strict=True))
        lines.append(line)
    every = pd.DataFrame(lines).reindex(columns=["row", "changed", "parameters", "seeds", *columns])
    grouped = every.groupby("row", sort=False)
    table = grouped[["changed", "parameters"]].first()
    table["seeds"] = grouped["seeds"].sum()
    for column in columns:
        table[column] = grouped[column].mean()
        table[f"{column} ±"] = grouped[column].std()
    for name in ("perplexity", "bleu", "parameters"):
        table[f"paper: {name}"] = [paper[row][name] for row in table.index]
    return table.rename(columns={"paper: parameters": "paper: parameters, M"}).reset_index()


def markdown(table: pd.DataFrame, sweep: Sweep) -> str:
    """The table for people: a mean and its deviation in one cell, an empty cell where there is nothing."""
    shown = pd.DataFrame({"row": table["row"], "changed": table["changed"], "parameters": table["parameters"].map("{:,}".format)})
    for column, digits in (("perplexity", 3), ("bleu valid", 2), ("bleu test", 2)):
        spread = table[f"{column} ±"].map(lambda value, digits=digits: "" if pd.isna(value) else f" ± {value:.{digits}f}")
        shown[column] = table[column].map(lambda value, digits=digits: "" if pd.isna(value) else f"{value:.{digits}f}") + spread
    shown["seeds"] = table["seeds"]
    for column, form in (("paper: perplexity", "{:.2f}"), ("paper: bleu", "{:.1f}"), ("paper: parameters, M", "{:.0f}")):
        shown[column] = table[column].map(lambda value, form=form: "" if pd.isna(value) else form.format(value))
    right = {"row", "changed"}
    text = shown.to_markdown(index=False, disable_numparse=True, colalign=["left" if name in right else "right" for name in shown])
    return f"{sweep.name} over {sweep.over}, {sweep.corpus}: ours, and the paper's on English-German newstest2013\n\n{text}\n"


@task(task_run_name="{run.row}, seed {run.seed}", cache_policy=NO_CACHE, persist_result=False)
def run_row(sweep: Sweep, run: Run, commit: str, cache: Path, children: dvc.Children) -> State[None]:
    """Have one run finished: nothing where its experiment is there, else `dvc repro` in a workspace, kept as an experiment."""
    logger = get_run_logger()
    name, output = run.experiment, LOGS / run.experiment
    with experiments.held(name, lambda: children.stopped, logger.info) as held:
        if held is None:
            return Cancelled(message=f"{name} was not started: the flow is being stopped")
        if scores_of(sweep, run, commit):
            return Completed(message=f"{name} is there already")
        try:
            folder = experiments.make(name, run.params, commit, cache)
            for step in dvc.plan([], folder):
                log = output / f"{step.stage.replace('/', '_')}.log"
                state = run_stage(step, log, children, folder, (held.fileno(),), return_state=True)
                if not state.is_completed():
                    last = dvc.last_lines(log, LAST_LINES) if log.exists() else []
                    logger.error("\n    ".join([str(state.message), *last]))
                    return (Cancelled if children.stopped else Failed)(message=f"{name}: {state.message}")
            experiments.keep(name, folder, ["dvc.lock", sweep.metrics])
        except (CheckFailed, dvc.DvcError, workspaces.GitError) as error:
            return Failed(message=f"{name}: {error}")
        return Completed(message=f"{name} is finished")


def requested(
    table: str, over: str, corpus: str, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> tuple[Sweep, list[Run]]:
    """What is asked for, checked. Raises SweepError, CheckFailed or GitError."""
    if table not in (known := tables()):
        raise SweepError(f"there is no table {table}: known are {', '.join(known)} (pipelines/<name>.yaml)")
    check()
    sweep = Sweep(table, over, corpus)
    runs = runs_of(sweep, read_params(), rows or [], list(dict.fromkeys(seeds or [])))
    workspaces.refuse_uncommitted(MADE_OF)
    return sweep, runs


def tables() -> list[str]:
    """The names of the tables that there are."""
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


@flow(
    name="sweep",
    flow_run_name="{table}-{over}-{corpus}",
    task_runner=ThreadPoolTaskRunner(max_workers=slots.WORKSPACES),  # type: ignore[arg-type]  # Prefect's own types do not fit each other
    persist_result=False,
)
def sweep_rows(
    table: str, over: str = "tiny", corpus: str = "demo", rows: list[str] | None = None, seeds: list[int] | None = None
) -> State[None]:
    """Run the rows of a table of variants (pipelines/<table>.yaml) that are not finished, and leave one table of all.

    `over` is the variant that the rows change, `rows` some of them (all by default), `seeds` make a run of each row for each (that of
    params.yaml by default). A row that fails keeps no other from running. Fails, naming the runs, where some are not finished.
    """
    logger = get_run_logger()
    try:
        sweep, runs = requested(table, over, corpus, rows, seeds)
        slots.check()
        commit, cache, parameters = workspaces.head(), dvc.cache_folder(), parameters_of(sweep)
    except (SweepError, CheckFailed, slots.SlotError, dvc.DvcError, workspaces.GitError) as error:
        return Failed(message=str(error))
    with stopped_with_the_flow() as children:
        futures = [run_row.submit(sweep, run, commit, cache, children, return_state=False) for run in runs]
        for future in futures:
            future.wait()
    for future in futures:
        if not future.state.is_completed():
            logger.error("%s", future.state.message)
    scores = [scores_of(sweep, run, commit) for run in runs]
    found = table_of(runs, scores, parameters, read_table(sweep.name)["paper"])
    text = markdown(found, sweep)
    sweep.result.parent.mkdir(parents=True, exist_ok=True)
    _write(sweep.result.with_suffix(".csv"), found.to_csv(index=False))
    _write(sweep.result.with_suffix(".md"), text)
    create_markdown_artifact(text, key=f"{sweep.name}-{sweep.over}-{sweep.corpus}".lower().replace("_", "-"))
    print(text)
    missing = [f"{run.row} (seed {run.seed})" for run, score in zip(runs, scores, strict=True) if score is None]
    if missing:
        return Failed(message=f"not finished: {', '.join(missing)}; the same command tries them again")
    return Completed(message=f"{len(runs)} runs are finished, the table is {sweep.result.with_suffix('.md')}")


def _write(path: Path, text: str) -> None:
    building = path.with_name(f"{path.name}.part")
    building.write_text(text, encoding="utf-8")
    building.replace(path)


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.sweep", description="Run the rows of a table of variants as experiments.")
    parser.add_argument("name", choices=tables(), help="the table: pipelines/<name>.yaml")
    parser.add_argument("--over", default="tiny", help="the variant whose rows are wanted (default: tiny)")
    parser.add_argument("--corpus", default="demo", help="default: demo")
    parser.add_argument("--rows", default="", help="some rows, such as A1,B1; all without it")
    parser.add_argument("--seeds", default="", help="one run of each row for each seed, such as 1,2,3; that of params.yaml without it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        seeds = [int(part) for part in options.seeds.split(",") if part]
    except ValueError:
        parser.error(f"--seeds is {options.seeds}: it takes whole numbers, such as 1,2,3")
    asked = (options.name, options.over, options.corpus, [part for part in options.rows.split(",") if part], seeds)
    try:
        requested(*asked)  # before Prefect starts a server
        start_server()
        state = sweep_rows(*asked, return_state=True)
    except CheckFailed as error:
        print(error, file=sys.stderr)
        return error.code
    except (SweepError, dvc.DvcError, workspaces.GitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped: a stage that ran had {GRACE:.0f} seconds to save its work; the next call goes on from here", file=sys.stderr)
        return 130
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main())
