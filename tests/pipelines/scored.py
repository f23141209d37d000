"""A small repository of scored models under real DVC and git: fetch -> train -> score, and experiments with other parameters.

Its one script stands for the project's stages: `train` writes translations of which a share of the words is wrong (the dropout), other ones
for every seed; `score` writes what the stage `score` does. `lines` of the corpus are the lines of its test set.
"""

import os
import subprocess
import sys
from pathlib import Path

PARAMS = """\
seed: 1
corpora:
  demo: {lines: 80}
variants:
  tiny:
    model: {dropout: 0.2}
decode: {beam_size: 4}
"""

PIPELINE = """\
stages:
  fetch:
    matrix: {corpus: [demo]}
    cmd: python work.py fetch
    params: ["corpora.${item.corpus}"]
    outs: ["data/${item.corpus}/raw", "data/${item.corpus}/manifest.json"]
  train:
    matrix: {corpus: [demo], variant: [tiny]}
    cmd: python work.py train
    params: [seed, "variants.${item.variant}.model"]
    deps: [code.py, "data/${item.corpus}/raw"]
    outs: ["runs/${item.corpus}/${item.variant}/averaged", "runs/${item.corpus}/${item.variant}/text"]
    plots: ["runs/${item.corpus}/${item.variant}/training.tsv"]
  score:
    matrix: {corpus: [demo], variant: [tiny]}
    cmd: python work.py score
    deps: ["runs/${item.corpus}/${item.variant}/text", "data/${item.corpus}/raw"]
    metrics: ["runs/${item.corpus}/${item.variant}/metrics.json": {cache: false}]
    outs: ["runs/${item.corpus}/${item.variant}/scores.json", "runs/${item.corpus}/${item.variant}/sentences.parquet"]
"""

WORK = r"""
import hashlib, json, random, sys
from pathlib import Path
from ruamel.yaml import YAML

params = YAML(typ="safe").load(Path("params.yaml").read_text())
words = "the a old new red small house tree cat dog sees has finds and not near far one two three".split()
raw, run = Path("data/demo/raw"), Path("runs/demo/tiny")
if sys.argv[1] == "fetch":
    rng, count = random.Random("text"), params["corpora"]["demo"]["lines"]
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(count)]
    raw.mkdir(parents=True)
    (raw / "test.de").write_text("".join(f"{line}\n" for line in lines))
    Path("data/demo/manifest.json").write_text(json.dumps({"sets": {"train": {"lines": 1000}, "test": {"lines": count}}}))
lines = (raw / "test.de").read_text().splitlines()
if sys.argv[1] == "train":
    rng, share = random.Random(params["seed"]), params["variants"]["tiny"]["model"]["dropout"]
    text = [" ".join(rng.choice(words) if rng.random() < share else word for word in line.split()) for line in lines]
    (run / "averaged").mkdir(parents=True)
    (run / "averaged" / "config.json").write_text(json.dumps({"parameters": 1000}))
    (run / "text").write_text("".join(f"{line}\n" for line in text))
    head = "update\ttokens\tloss\tvalid_loss\tvalid_perplexity\tlearning_rate\n"
    (run / "training.tsv").write_text(head + f"10\t100\t{5 + share}\t\t\t0.1\n20\t200\t{2 + share}\t2.5\t12.2\t0.2\n")
if sys.argv[1] == "score":
    import pyarrow as pa, pyarrow.parquet as pq
    text = (run / "text").read_text().splitlines()
    chrf = [100.0 * sum(a == b for a, b in zip(one.split(), other.split())) / len(one.split()) for one, other in zip(lines, text)]
    found = {"score": round(sum(chrf) / len(chrf), 2), "signature": "of the tests"}
    sha256 = hashlib.sha256((raw / "test.de").read_bytes()).hexdigest()
    facts = {"lines": len(lines), "source_sha256": sha256, "reference_sha256": sha256, "bleu": found, "bleu_unseen": None}
    (run / "metrics.json").write_text(json.dumps({"test": {"bleu": found["score"]}}))
    (run / "scores.json").write_text(json.dumps({"sets": {"test": facts}}))
    counts = [len(line.split()) for line in lines]
    columns = {"set": ["test"] * len(lines), "line": range(1, len(lines) + 1), "source": lines, "reference": lines, "hypothesis": text}
    pq.write_table(pa.table({**columns, "chrf": chrf, "source_words": counts, "reference_words": counts}), run / "sentences.parquet")
"""


class Scored:
    """The repository and the commands that are run in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        identity = {f"GIT_{who}_{what}": "nobody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self.folder, self.environment = folder, environment | identity

    def make(self) -> None:
        """Write the files, run the stages, commit."""
        for name, text in (("params.yaml", PARAMS), ("dvc.yaml", PIPELINE), ("work.py", WORK), ("code.py", "one = 1\n")):
            (self.folder / name).write_text(text)
        (self.folder / ".gitignore").write_text("/data\n/runs/*/*/*\n!/runs/*/*/metrics.json\n/comparison\n__pycache__\n")
        self.run("git", "init", "-q")
        self.run("dvc", "init", "-q")
        self.run("dvc", "repro", "-q")
        self.commit()

    def run(self, *arguments: str) -> str:
        """The output of a command that must end well."""
        code, output = self.call(*arguments)
        assert code == 0, output
        return output

    def call(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command; `dvc` and `python` are those of the tests."""
        tool = {"dvc": [sys.executable, "-m", "dvc"], "python": [sys.executable]}.get(arguments[0], [arguments[0]])
        done = subprocess.run(
            [*tool, *arguments[1:]],
            cwd=self.folder,
            env=self.environment | {"PYTHONPATH": os.pathsep.join(sys.path[:1] + [str(Path(__file__).parents[2])])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "results")

    def experiment(self, name: str, *changes: str) -> None:
        """Keep results with other parameters as an experiment, and go back."""
        self.run("dvc", "exp", "run", "-q", "-n", name, *(part for change in changes for part in ("-S", change)))
        self.run("git", "checkout", "-q", ".")
        self.run("dvc", "checkout", "-q")
