"""The whole pipeline as its users run it: real `dvc repro` on a toy language, in a git repository made of the project's own files.

The toy language spells each word backwards: "red old house" is "der dlo esuoh".
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.copy_task import PROJECT

pytestmark = pytest.mark.slow

STAGES = ["fetch", "clean", "tokenizer", "shard", "train", "average", "translate", "score", "report"]
WORDS = "the a old new red small house tree cat dog sees has finds and not near far one two three".split()
FILES = {name: {"src": f"text/{name}.en", "tgt": f"text/{name}.de"} for name in ("train", "valid", "test")}
MODEL = dict(layers=1, d_model=32, heads=2, d_k=16, d_v=16, dropout=0.1, positions="sinusoidal")
TRAIN = dict(
    updates=120, tokens_per_update=600, microbatches=2, warmup_updates=60, label_smoothing=0.1, adam_beta1=0.9, adam_beta2=0.98,
    adam_epsilon=1e-9, checkpoint_every=40, checkpoints_kept=3, patience=None, precision="float32",
)  # fmt: skip


def params() -> dict[str, Any]:
    """The project's parameters with one corpus of files and two small variants, of which one is built."""
    content: dict[str, Any] = YAML(typ="safe", pure=True).load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    corpus = content["corpora"]["demo"]
    corpus |= {"source": {"kind": "files", "sets": {name: [pair] for name, pair in FILES.items()}}, "held_out": None}
    corpus["tokenizer"] |= {"vocab_size": 340}
    small, wide = ({"model": {**MODEL, "d_ff": d_ff}, "train": {**TRAIN}, "average": {"last": 3}} for d_ff in (64, 128))
    return content | {
        "reproduce": {"corpora": ["toy"], "variants": ["small"], "curves": []},
        "corpora": {"toy": corpus},
        "variants": {"small": small, "wide": wide},
        "hardware": content["hardware"] | {"device": "cpu", "threads": 1},
    }


def sentences(name: str, count: int) -> list[str]:
    """Different ones for each set."""
    rng = random.Random(name)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + f" {name[0]}{n % 7}" for n in range(count)]


class Project:
    """A copy of the project in a folder and its own git repository."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    @classmethod
    def made(cls, folder: Path, environment: dict[str, str]) -> "Project":
        """A new one, of which nothing has been run."""
        for name in ("nmt", "stages", "pipelines"):
            shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(PROJECT / name, folder / name)
        YAML(typ="safe", pure=True).dump(params(), folder / "params.yaml")
        (folder / "text").mkdir()
        for name, count in (("train", 400), ("valid", 20), ("test", 20)):
            lines = sentences(name, count)
            (folder / FILES[name]["src"]).write_text("".join(f"{line}\n" for line in lines))
            (folder / FILES[name]["tgt"]).write_text("".join(f"{' '.join(word[::-1] for word in line.split())}\n" for line in lines))
        made = cls(folder, environment)
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
            made.command("git", *arguments)
        return made

    def start(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        done = subprocess.run(
            arguments,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def command(self, *arguments: str) -> str:
        """Output of a command that must end well."""
        code, output = self.start(*arguments)
        assert code == 0, output
        return output

    def dvc(self, *arguments: str) -> str:
        return self.command(sys.executable, "-m", "dvc", *arguments)

    def table(self, *arguments: str) -> list[list[str]]:
        """The rows of a table of DVC's, without its head."""
        rows = [line for line in self.dvc(*arguments, "--md").splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]

    def repro(self) -> list[str]:
        """The stages that `dvc repro` runs, by name."""
        return re.findall(r"^Running stage '(\w+)@", self.dvc("repro"), re.M)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old, text.count(old))
        (self.folder / name).write_text(text.replace(old, new), encoding="utf-8")

    def change(self, path: str, value: Any) -> None:
        """Another value in params.yaml."""
        yaml = YAML(typ="safe", pure=True)
        content = yaml.load(self.folder / "params.yaml")
        *parents, last = path.split(".")
        node = content
        for part in parents:
            node = node[part]
        assert last in node
        node[last] = value
        yaml.dump(content, self.folder / "params.yaml")

    def files(self) -> set[str]:
        """All files but those of git and DVC."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return {str(path) for path in found if path.parts[0] not in (".git", ".dvc")}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nothing of the user's settings, and the interpreter of the tests as `python`."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_"))}
    who = {f"GIT_{role}_{what}": f"test{at}" for role in ("AUTHOR", "COMMITTER") for what, at in (("NAME", ""), ("EMAIL", "@example.org"))}
    return {
        **kept, **who, "HOME": str(home), "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "DVC_SITE_CACHE_DIR": str(home / "dvc"), "GIT_CONFIG_GLOBAL": os.devnull, "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Project:
    """The project after one `dvc repro`. Not to be changed."""
    project = Project.made(tmp_path_factory.mktemp("built") / "project", environment)
    assert project.repro() == STAGES
    for arguments in (["add", "."], ["commit", "-qm", "Reproduce"]):
        project.command("git", *arguments)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the project that is up to date, to be changed."""
    shutil.copytree(built.folder, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project", built.environment)


@pytest.fixture
def new(tmp_path: Path, environment: dict[str, str]) -> Iterator[Project]:
    """The project of which nothing has been run."""
    yield Project.made(tmp_path / "project", environment)


@pytest.mark.essential
def test_a_run_builds_everything_and_the_next_one_only_what_a_change_concerns(project: Project) -> None:
    for name in ("report.html", "metrics.json", "averaged/model.safetensors", "translations/test.txt"):
        assert (project.folder / "runs/toy/small" / name).stat().st_size > 0
    assert len((project.folder / "runs/toy/small/translations/test.txt").read_bytes().split(b"\n")) == 21

    assert project.repro() == []

    with (project.folder / "params.yaml").open("a") as stream:
        stream.write("# a comment\n")
    project.change("variants.wide.model.dropout", 0.3)
    project.change("variants.wide.train.updates", 160)
    project.change("hardware.decode_tokens", 5000)
    assert project.repro() == []

    project.change("decode.beam_size", 1)
    assert project.repro() == ["translate", "score", "report"]


def test_bleu_over_updates_is_a_stage_of_its_own_that_is_off_until_it_is_asked_for(project: Project) -> None:
    project.change("reproduce.curves", ["small"])
    assert project.repro() == ["curve"]
    rows = [line.split("\t") for line in (project.folder / "runs/toy/small/curve.tsv").read_text().splitlines()]
    assert rows[0] == ["update", "bleu", "chrf"] and [row[0] for row in rows[1:]] == ["40", "80", "120"]
    project.change("decode.beam_size", 1)
    assert sorted(project.repro()) == ["curve", "report", "score", "translate"]


def test_in_another_folder_from_nothing_the_result_is_the_same_to_the_byte(built: Project, new: Project) -> None:
    assert not (new.folder / ".scratch").exists() and not (new.folder / ".dvc" / "cache").exists()
    assert new.repro() == STAGES
    for name in ("dvc.lock", "runs/toy/small/metrics.json"):
        assert (new.folder / name).read_bytes() == (built.folder / name).read_bytes()
    assert new.files() - built.files() == set()


def test_outs_that_were_deleted_come_back_from_the_cache(project: Project) -> None:
    shutil.rmtree(project.folder / "runs")
    shutil.rmtree(project.folder / ".scratch")
    assert project.repro() == []
    assert project.command("git", "status", "--porcelain") == ""


def test_an_experiment_shows_as_one_changed_parameter_and_its_scores(project: Project) -> None:
    shown = {row[0]: row[1:] for row in project.table("metrics", "show")}
    [metrics] = shown
    assert metrics == "runs/toy/small/metrics.json" and len(shown[metrics]) == 5
    assert project.table("params", "diff") == project.table("metrics", "diff") == []
    output = project.dvc("exp", "run", "-S", "variants.small.model.dropout=0.2")
    assert re.findall(r"^Running stage '(\w+)@", output, re.M) == ["train", "average", "translate", "score", "report"]
    assert project.table("params", "diff") == [["params.yaml", "variants.small.model.dropout", "0.1", "0.2"]]
    assert "valid.perplexity" in [row[1] for row in project.table("metrics", "diff")]


def test_a_second_variant_leaves_the_first_one_alone(project: Project) -> None:
    first = (project.folder / "runs/toy/small/report.html").read_bytes()
    project.change("reproduce.variants", ["small", "wide"])
    assert project.repro() == ["train", "average", "translate", "score", "report"]
    assert (project.folder / "runs/toy/small/report.html").read_bytes() == first
    assert (project.folder / "runs/toy/wide/report.html").read_bytes() != first


def test_ctrl_c_saves_and_the_next_run_goes_on_there(project: Project) -> None:
    project.change("variants.small.train.updates", 800)
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a process group of its own, as a terminal gives it
    )
    end = time.monotonic() + 100
    while not list(project.folder.glob(".scratch/train/*/checkpoints/step-00000160")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    [step] = re.findall(r"^stopped at update (\d+), which is saved", output, re.M)
    assert process.returncode != 0 and "Traceback" not in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    output = project.dvc("repro")
    assert f"goes on from update {step} " in output and (project.folder / "runs/toy/small/report.html").exists()


def lines(*found: str) -> bytes:
    return "".join(f"{line}\n" for line in found).encode()


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        pytest.param(
            lines(*"abcdefghi"), lines(*"abcdefghij"), r"text/train\.en has 9 lines, text/train\.de has 10: ", id="9 and 10 lines"
        ),
        pytest.param(
            lines("a", "b").decode().encode("utf-16"), lines("c", "d"), r"text/train\.en, line 1, byte 0: this is UTF-16", id="UTF-16"
        ),
        pytest.param(b"a\nb\xff\n", lines("c", "d"), r"text/train\.en, line 2, byte 3: ff is not UTF-8", id="not UTF-8"),
        pytest.param(None, lines("c", "d"), r"text/train\.en cannot be read: No such file", id="missing"),
        pytest.param(b"", b"", r"text/train\.en is empty", id="empty"),
        pytest.param(lines(*"abc"), lines(*"abc"), r"text/train\.en and text/train\.de hold the same text", id="the same text"),
    ],
)
def test_what_is_wrong_with_a_users_file_is_said_in_one_sentence_and_nothing_is_left(
    new: Project, src: bytes | None, tgt: bytes, message: str
) -> None:
    for name, content in zip(FILES["train"].values(), (src, tgt), strict=True):
        (new.folder / name).unlink()
        if content is not None:
            (new.folder / name).write_bytes(content)
    before = new.files()
    code, output = new.start(sys.executable, "-m", "dvc", "repro")
    assert code != 0 and "Traceback" not in output
    [sentence] = re.findall(r"^error: .*$", output, re.M)
    assert re.match(f"error: {message}", sentence)
    assert new.files() == before


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("variants.small.model.layers", "1", "variants.small.model.layers is '1': it must be a whole number"),
        ("variants.small.average.last", 4, "variants.small.average.last is 4, but variants.small.train.checkpoints_kept is only 3"),
    ],
)
def test_what_is_wrong_in_params_stops_before_any_work(new: Project, path: str, value: Any, message: str) -> None:
    new.change(path, value)
    before = new.files()
    code, output = new.start(sys.executable, "-m", "dvc", "repro")
    assert code != 0 and "Traceback" not in output
    assert re.findall(r"^error: .*$", output, re.M) == [f"error: {message}"]
    assert new.files() == before
