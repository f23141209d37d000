"""A git repository with a toy pipeline, data -> train, a table of three rows, and a text that git does not know.

Its one script is led by files beside it: NAME.hold makes the stage NAME wait, NAME.fail makes it fail; a training is called
train-<x>-<seed>. It leaves NAME.started, and a line in ran.txt when it has done its work.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipelines.toy import Toy

PROJECT = Path(__file__).parents[2]

TOY_PARAMS = """\
seed: 7
reproduce: {corpora: [other], variants: [small], curves: []}
corpora:
  toy: {n: 1, source: {kind: files, sets: {train: [{src: text/a, tgt: text/b}]}}}
variants:
  small:                # a comment
    model: {x: 1, y: 2}
hardware: {scratch: .scratch}
"""
TOY_TABLE = """\
paper:
  one: {perplexity: 4.92, bleu: 25.8, parameters: 65}
  two: {perplexity: 5.29, bleu: 24.9, parameters: null}
  three: {perplexity: 5.00, bleu: 25.5, parameters: null}
variants:
  small:
    common: {model.y: 5}
    rows: {one: {}, two: {model.x: 2}, three: {model.x: 3}}
"""
TOY_PIPELINE = """\
stages:
  data:
    matrix: {corpus: "${reproduce.corpora}"}
    cmd: python -m stages.work data text/a data/${item.corpus}
    params: ["corpora.${item.corpus}.n"]
    deps: [stages/work.py]
    outs: ["data/${item.corpus}"]
  train:
    matrix: {corpus: "${reproduce.corpora}", variant: "${reproduce.variants}"}
    cmd: python -m stages.work train data/${item.corpus} runs/${item.corpus}/${item.variant}/metrics.json
    params: [seed, "variants.${item.variant}.model"]
    deps: [stages/work.py, "data/${item.corpus}"]
    metrics:
      - runs/${item.corpus}/${item.variant}/metrics.json: {cache: false}
"""
TOY_WORK = """\
import json, os, sys, time
from pathlib import Path
from ruamel.yaml import YAML

name, source, out = sys.argv[1:]
top, params = Path(os.environ["TOY"]), YAML(typ="safe", pure=True).load(Path("params.yaml"))
text, model = Path(source).read_text(), params["variants"]["small"]["model"]
if name == "train":
    name = f"train-{model['x']}-{params['seed']}"
(top / (name + ".started")).touch()
while (top / (name + ".hold")).exists():
    time.sleep(0.02)
if (top / (name + ".fail")).exists():
    sys.exit("error: no good data in line 7")
Path(out).parent.mkdir(parents=True, exist_ok=True)
score = model["x"] * model["y"] + params["seed"] / 10
scores = {"valid": {"bleu": score, "perplexity": 3.0}, "test": {"bleu": score + 1, "chrf": 1.0}}
Path(out).write_text(text if name == "data" else json.dumps(scores))
with open(top / "ran.txt", "a") as ran:
    print(name, file=ran)
"""
TOY_FORECAST = "print('row,parameters\\none,10\\ntwo,20\\nthree,30')\n"


@contextmanager
def repository(folder: Path, environment: dict[str, str]) -> Iterator[Toy]:
    """The repository in `folder`. What still runs in it at the end is killed."""
    who = {f"GIT_{role}_{what}": f"test{at}" for role in ("AUTHOR", "COMMITTER") for what, at in (("NAME", ""), ("EMAIL", "@example.org"))}
    toy = Toy(folder, environment | who | {"TOY": str(folder), "PYTHONDONTWRITEBYTECODE": "1"})
    (folder / "stages").mkdir(parents=True)
    (folder / "nmt").mkdir()
    shutil.copytree(PROJECT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__", "*.yaml"))
    for name, text in {
        "params.yaml": TOY_PARAMS, "dvc.yaml": TOY_PIPELINE, "pipelines/rows.yaml": TOY_TABLE, "nmt/__init__.py": "",
        "stages/__init__.py": "", "stages/check.py": "", "stages/forecast.py": TOY_FORECAST, "stages/work.py": TOY_WORK,
        ".gitignore": ".scratch/\n/text\n/runs/*/*.md\n/runs/*/*.csv\n*.hold\n*.fail\n*.started\nran.txt\n", ".dvcignore": ".scratch\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "text").mkdir()
    (folder / "text" / "a").write_text("a text")

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=folder, env=toy.environment, check=True, capture_output=True)

    git("init", "-q")
    assert toy.run("dvc", "init", "-q")[0] == 0
    git("add", ".")
    git("commit", "-qm", "Begin")
    yield toy
    toy.kill()
