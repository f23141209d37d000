"""stages.check: params.yaml as a whole, before any work."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from nmt.errors import UserError
from stages.check import main
from tests.copy_task import PROJECT, run

TEXT = (PROJECT / "params.yaml").read_text(encoding="utf-8")
DELETED: Any = object()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(changes: dict[str, Any]) -> None:
    """The project's params.yaml with other values at the dotted names in `changes`."""
    content = YAML(typ="safe", pure=True).load(TEXT)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = content
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is DELETED:
            del node[last]
        else:
            node[last] = value
    YAML(typ="safe", pure=True).dump(content, Path("params.yaml"))


def message(changes: dict[str, Any]) -> str:
    write(changes)
    with pytest.raises(UserError) as raised:
        main()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_projects_own_file_passes() -> None:
    write({})
    main()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("sede", 3, "sede is unknown: did you mean seed?"),
        ("seed", DELETED, "seed is missing"),
        ("seed", -1, "seed is -1: it must be at least 0"),
        ("variants.base.model.droput", 0.1, "variants.base.model.droput is unknown: did you mean dropout?"),
        ("variants.base.model.dropout", DELETED, "variants.base.model.dropout is missing"),
        ("variants.base.model.dropout", "0.1", "variants.base.model.dropout is '0.1': it must be a number"),
        ("variants.base.model.dropout", 1.0, "variants.base.model.dropout is 1.0: it must be below 1"),
        ("variants.base.model.layers", 0, "variants.base.model.layers is 0: it must be at least 1"),
        ("variants.base.model.d_model", 511, "variants.base.model.d_model is 511: it must be a multiple of 2"),
        ("variants.base.train.adam_epsilon", "1e-9", "variants.base.train.adam_epsilon is '1e-9': it must be a number"),
        ("variants.base.train.adam_epsilon", float("inf"), "variants.base.train.adam_epsilon is inf: it must be a finite number"),
        ("variants.base.train.warmup_updates", 0, "variants.base.train.warmup_updates is 0: it must be at least 1"),
        ("variants.base.train.updates", 1500 * 10**30 + 1, "variants.base.train cannot be so: the last checkpoint, at updates"),
        ("variants.base.train.precision", "float16", "variants.base.train.precision is 'float16': it must be float32 or bfloat16"),
        ("variants.base.average.last", 6, "variants.base.average.last is 6, but variants.base.train.checkpoints_kept is only 5"),
        ("variants.base", None, "variants.base is None: it must be a section, with model, train, average below it"),
        ("variants", {}, "variants is {}: it must be a section of at least 1"),
        ("reproduce.curves", ["base"], "reproduce.curves names base, which is not in reproduce.variants: known are tiny"),
        ("reproduce.variants", ["tyni"], "reproduce.variants names tyni, which is not below variants: did you mean tiny?"),
        ("reproduce.corpora", ["dmo"], "reproduce.corpora names dmo, which is not below corpora: did you mean demo?"),
        ("reproduce.corpora", ["demo", "demo"], "reproduce.corpora names one twice: demo, demo"),
        ("reproduce.corpora", "demo", "reproduce.corpora is 'demo': it must be a list"),
        ("reproduce.corpora", [], "reproduce.corpora is []: it must be a list of at least 1"),
        ("corpora.demo.source.kind", "wheels", "corpora.demo.source.kind is 'wheels': did you mean wheel?"),
        ("corpora.demo.source.pakage", "x", "corpora.demo.source.pakage is unknown: did you mean package?"),
        ("corpora.wmt14-en-fr.source.archives.un.sha", "x", "corpora.wmt14-en-fr.source.archives.un.sha is unknown: did you mean sha256?"),
        ("corpora.wmt14-en-de.source.sets.train.0.scr", "x", "corpora.wmt14-en-de.source.sets.train.0.scr is unknown: did you mean src?"),
        ("corpora.demo.tokenizer.vocab_size", "8000", "corpora.demo.tokenizer.vocab_size is '8000': it must be a whole number"),
        ("decode.beam", 4, "decode.beam is unknown: did you mean beam_size?"),
        ("score", DELETED, "score is missing"),
        ("score.comet", {"model": "Unbabel/wmt22-comet-da"}, "score.comet.precision is missing"),
        ("score.comet", {"model": "m", "precision": "float16", "batch": 1}, "score.comet.batch is unknown: known are model, precision"),
        ("hardware.threads", 0, "hardware.threads is 0: it must be auto or at least 1"),
        ("hardware.device", "gpu", "hardware.device is 'gpu': it must be auto, cpu or cuda"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_sentence(path: str, value: Any, expected: str) -> None:
    assert message({path: value}).startswith(expected)


def test_comet_is_asked_for_before_any_work(comet_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMET_PYTHON", raising=False)
    asked = {"score.comet": {"model": "Unbabel/wmt22-comet-da", "precision": "float32"}}
    assert message(asked).startswith("COMET runs in an interpreter of its own, and COMET_PYTHON names none")
    monkeypatch.setenv("COMET_PYTHON", str(comet_python))
    main()


@pytest.mark.parametrize("name", ["dropout0.2", "a/b", "..", "", "with space", "-x", 3])
@pytest.mark.parametrize("kind", ["corpora", "variants"])
def test_a_name_that_cannot_stand_in_paths_and_dotted_names_is_refused(kind: str, name: Any) -> None:
    content = YAML(typ="safe", pure=True).load(TEXT)
    content[kind][name] = next(iter(content[kind].values()))
    YAML(typ="safe", pure=True).dump(content, Path("params.yaml"))
    with pytest.raises(UserError, match=rf"^{kind}\b.* is {re.escape(repr(name))}: "):
        main()


def test_all_that_is_wrong_is_named_at_once() -> None:
    found = message({"seed": "x", "variants.tiny.model.layers": 0, "decode.beam_size": 0})
    assert [part.split(" ")[0] for part in found.split("; ")] == ["seed", "variants.tiny.model.layers", "decode.beam_size"]


def fetched(files: dict[str, bytes]) -> None:
    """The manifest of the corpus demo, as if it had been fetched from these files."""
    facts = {name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)} for name, content in files.items()}
    Path("data/demo").mkdir(parents=True)
    manifest = {"languages": {"src": "en", "tgt": "de"}, "source": {"kind": "files", "files": facts}, "sets": {}, "counted": {}}
    Path("data/demo/manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_a_users_file_that_changed_since_it_was_fetched_is_found() -> None:
    fetched({"my.en": b"one\n", "my.de": b"eins\n"})
    write({})
    main()  # the files are not here: what was fetched stands
    Path("my.en").write_bytes(b"one\n")
    main()
    Path("my.de").write_bytes(b"zwei\n")
    with pytest.raises(
        UserError, match=r"^my\.de has changed since corpora\.demo was fetched: run `dvc repro -f fetch@demo` to take it up$"
    ):
        main()


def test_the_empty_lock_that_a_stopped_dvc_leaves_is_named() -> None:
    write({})
    lock = Path(".dvc/tmp/rwlock")
    lock.parent.mkdir(parents=True)
    lock.write_text("{}")
    main()
    lock.write_text("")
    with pytest.raises(UserError, match=r"^\.dvc/tmp/rwlock is empty, .*: unless another dvc runs here, delete it$"):
        main()


@pytest.mark.parametrize("part", [0, 0.3, 0.5, 0.9])
def test_a_dvc_lock_that_was_cut_short_is_named_with_the_way_out(here: Path, part: float) -> None:
    write({})
    whole = (PROJECT / "dvc.lock").read_text(encoding="utf-8")
    Path("dvc.lock").write_text(whole)
    main()
    end = whole.index("  md5: ", int(part * len(whole)))
    for cut in (end, end + 12):  # before and within a hash
        Path("dvc.lock").write_text(whole[:cut] if part else "")
        with pytest.raises(
            UserError, match=r"^dvc\.lock is cut short, .*: unless another dvc runs here, `git checkout dvc\.lock` or delete it"
        ):
            main()


def test_as_a_command_it_says_nothing_or_one_sentence_and_leaves_nothing(here: Path) -> None:
    Path("params.yaml").write_text(TEXT, encoding="utf-8")
    assert run(here, "stages.check") == (0, "")
    Path("params.yaml").write_text(TEXT.replace(" heads:", " headz:", 1), encoding="utf-8")
    expected = "variants.tiny.model.heads is missing; variants.tiny.model.headz is unknown: did you mean heads?"
    assert run(here, "stages.check") == (2, f"error: {expected}\n")
    assert [path.name for path in here.iterdir()] == ["params.yaml"]
