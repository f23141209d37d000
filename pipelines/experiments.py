"""Experiments: the present commit with other parameters, each in a git worktree of its own that shares the cache, kept by DVC.

The flow `experiment` is one of them, asked for by what differs:

    {"corpora": ["demo"], "variants": ["tiny"], "overrides": {"seed": 2, "variants.tiny.train.updates": 1000}}

It touches nothing in the project's folder, so several may run at once, beside a `reproduce`. It is finished, and nothing is left to do,
when its experiment stands on the present commit with the same parameters; on another commit DVC decides by its cache.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import IO, Any

from ruamel.yaml import YAML

from pipelines import dvc, slots, workspaces
from pipelines.repro import AT_ONCE, NOTHING_TO_DO, CheckFailed, check, plan_and_run, stopped_with_the_flow  # sets Prefect up, so before it

from prefect import State, flow, get_run_logger  # isort: skip
from prefect.states import Cancelled, Completed, Failed  # isort: skip
from prefect.task_runners import ThreadPoolTaskRunner  # isort: skip

WORKSPACES = Path(".scratch/workspaces")
PARAMS = "params.yaml"
MADE_OF = ("nmt", "stages", "dvc.yaml", PARAMS)  # must be committed


class ExperimentError(Exception):
    """What is asked for does not exist. The message is one sentence."""


def read_params() -> Any:
    """The content of params.yaml."""
    return YAML(typ="safe", pure=True).load(Path(PARAMS).read_text(encoding="utf-8"))


def changed(params: Any, corpora: Sequence[str], variants: Sequence[str], overrides: dict[str, Any]) -> Any:
    """`params` with these corpora and variants (none: those it has) below `reproduce`, and the values of dotted names replaced."""
    values = deepcopy(params)
    for kind, names in (("corpora", corpora), ("variants", variants)):
        if unknown := [name for name in names if name not in params[kind]]:
            raise ExperimentError(f"{PARAMS} has no {kind} {', '.join(unknown)}: known are {', '.join(params[kind])}")
        if names:
            values["reproduce"][kind] = list(names)
    for name, value in overrides.items():
        *sections, key = name.split(".")
        section = values
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or key not in section:
            raise ExperimentError(f"{PARAMS} has no {name}, which is to be {value}")
        section[key] = value
    return values


def name_of(params: Any, overrides: dict[str, Any]) -> str:
    """What an experiment is called: its corpora and variants, and a hash of what else differs."""
    names = [*params["reproduce"]["corpora"], *params["reproduce"]["variants"]]
    if overrides:
        names.append(hashlib.sha256(json.dumps(overrides, sort_keys=True).encode()).hexdigest()[:8])
    return "-".join(names)


def held(name: str, stopped: Callable[[], bool], tell: Callable[[str], None]) -> AbstractContextManager[IO[str] | None]:
    """Hold the workspace of the experiment `name` alone, as `workspaces.lock` does."""
    return workspaces.lock(WORKSPACES / f"{name}.lock", stopped, tell)


def finished(name: str, params: Any, commit: str) -> bool:
    """Whether the experiment `name` stands on `commit` with these parameters."""
    text = workspaces.committed(dvc.experiment(commit, name), PARAMS)
    return text is not None and YAML(typ="safe", pure=True).load(text) == params


def make(name: str, params: Any, commit: str, cache: Path) -> Path:
    """Make the workspace of an experiment anew, and have its parameters checked. Raises CheckFailed, DvcError or GitError."""
    folder = WORKSPACES / name
    workspaces.make(folder, commit, cache, Path(params["hardware"]["scratch"]))
    workspaces.link(list(own_files(params)), folder)
    write_params(params, folder / PARAMS)
    check(folder)
    return folder


def keep(name: str, folder: Path, new: Sequence[str]) -> None:
    """Keep what the workspace holds as the experiment `name`, as `dvc.save_experiment` does, and remove the workspace."""
    with workspaces.lock(WORKSPACES / "save.lock", lambda: False, lambda text: None):  # all worktrees have one repository
        dvc.save_experiment(folder, name, new)
        workspaces.remove(folder)


def write_params(params: Any, file: Path) -> None:
    """Write the values into `file`, which has their comments."""
    yaml = YAML()
    yaml.width = 1000
    yaml.preserve_quotes = True
    yaml.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    content = yaml.load(file)

    def put(target: Any, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(target.get(key), dict):
                put(target[key], value)
            elif target[key] != value:
                target[key] = value

    put(content, params)
    yaml.dump(content, file)


def own_files(params: Any) -> Iterator[str]:
    """The user's own files that the corpora of `reproduce` are read from."""
    for corpus in params["reproduce"]["corpora"]:
        source = params["corpora"][corpus]["source"]
        if source["kind"] == "files":
            for parts in source["sets"].values():
                for part in parts:
                    yield from part.values()


@flow(
    name="experiment",
    task_runner=ThreadPoolTaskRunner(max_workers=AT_ONCE),  # type: ignore[arg-type]  # Prefect's own types do not fit each other
    persist_result=False,
)
def experiment(corpora: list[str] | None = None, variants: list[str] | None = None, overrides: dict[str, Any] | None = None) -> State[None]:
    """Build every one of `corpora` with every one of `variants` (those of params.yaml by default), with other values of some parameters.

    `overrides` has them by their dotted names: {"seed": 2, "variants.tiny.train.updates": 1000}.
    """
    logger = get_run_logger()
    try:
        check()
        slots.check()
        workspaces.refuse_uncommitted(MADE_OF)
        params = changed(read_params(), corpora or [], variants or [], overrides or {})
        name, commit, cache = name_of(params, overrides or {}), workspaces.head(), dvc.cache_folder()
        with stopped_with_the_flow() as children, held(name, lambda: children.stopped, logger.info) as lock:
            if lock is None:
                return Cancelled(message=f"{name} was not started: the flow is being stopped")
            if finished(name, params, commit):
                return Completed(message=f"{NOTHING_TO_DO}: the experiment {name}")
            folder = make(name, params, commit, cache)
            state = plan_and_run([], children, folder, (lock.fileno(),))
            if state.is_completed():
                keep(name, folder, ["dvc.lock", *dvc.metrics_files(folder)])
                return Completed(message=f"the experiment {name} is finished: dvc exp show")
            return state
    except (CheckFailed, ExperimentError, slots.SlotError, dvc.DvcError, workspaces.GitError) as error:
        return Failed(message=str(error))
