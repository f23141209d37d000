"""stages.params: params.yaml as DVC reads it, and what is wrong with the file in one sentence."""

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import load_yaml

from nmt.config import Config
from nmt.errors import UserError
from stages import params


class Model(Config):
    layers: int
    epsilon: float


CONTENT = "seed: 7\nvariants:\n  base:\n    model: {layers: 6, epsilon: 1e-9}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(content: str | bytes) -> None:
    Path("params.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())


def test_a_section_is_found_by_its_dotted_name() -> None:
    write(CONTENT)
    assert params.load("variants.base.model", Model) == Model(layers=6, epsilon=1e-9)
    assert params.value("variants.base.model.layers") == 6
    assert params.seed() == 7


@pytest.mark.parametrize(
    "content",
    [
        CONTENT,
        "a: 1e-9\nb: 1.0e-9\nc: 010\nd: yes\ne: on\nf: null\ng: ~\nh: 1_000\ni: 12:30\nj: 2017-01-01\nk: 'ü'\nl: 0x1F\nm: .inf",
        "\ufeffa: 1",
    ],
)
def test_the_file_is_read_as_dvc_reads_it(content: str) -> None:
    write(content)
    read = params.read()
    assert read == load_yaml("params.yaml")
    assert [type(value) for value in read.values()] == [type(value) for value in load_yaml("params.yaml").values()]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("sed", "params.yaml: there is no sed: did you mean seed?"),
        ("variants.bass.model", "params.yaml: there is no variants.bass: did you mean base?"),
        ("variants.base.modle", "params.yaml: there is no variants.base.modle: did you mean model?"),
        ("variants.base.model.layers.n", "params.yaml: there is no variants.base.model.layers.n"),
        ("corpora.demo", "params.yaml: there is no corpora: known are seed, variants"),
    ],
)
def test_a_name_that_is_not_there_is_shown_up_to_where_it_ends(section: str, message: str) -> None:
    write(CONTENT)
    with pytest.raises(UserError) as raised:
        params.value(section)
    assert str(raised.value).startswith(message)


def test_a_wrong_value_is_named_by_its_dotted_name() -> None:
    write(CONTENT.replace("6", "'6'"))
    with pytest.raises(UserError, match=r"^variants\.base\.model\.layers is '6': it must be a whole number$"):
        params.load("variants.base.model", Model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a:\n\t- b\n", "params.yaml, line 2, column 1: this is not valid YAML, found character '\\t' that cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", 'params.yaml, line 3, column 1: this is not valid YAML, found duplicate key "a"'),
        ("a: {x: 1, x: 2}\n", 'params.yaml, line 1, column 11: this is not valid YAML, found duplicate key "x"'),
        ("a:\n  b: 1\n c: 2\n", "params.yaml, line 3, column 2: this is not valid YAML, "),
        ("a: [1, 2\n", "params.yaml, line 2, column 1: this is not valid YAML, expected ',' or ']'"),
        ("a: *b\n", "params.yaml, line 1, column 4: this is not valid YAML, found undefined alias"),
        ("a: !!python/object/apply:os.mkdir [sprung]\n", "params.yaml, line 1, column 4: this is not valid YAML, could not determine"),
        ("a: 1\n---\nb: 2\n", "params.yaml, line 2, column 1: this is not valid YAML, but found another document"),
        ("seed: 2026-13-45\n", "params.yaml is not valid YAML: month must be in 1..12"),
        ("a: '\0'\n", "params.yaml is not valid YAML: unacceptable character #x0000"),
        ("", "params.yaml holds no sections"),
        ("# only a comment\n", "params.yaml holds no sections"),
        ("- a\n- b\n", "params.yaml holds no sections"),
        ("seed", "params.yaml holds no sections"),
        (CONTENT.encode("utf-16"), "params.yaml is not UTF-8 text, from byte 0 on"),
        (b"a: caf\xe9\n", "params.yaml is not UTF-8 text, from byte 6 on"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_in_one_sentence(content: str | bytes, message: str) -> None:
    write(content)
    with pytest.raises(UserError) as raised:
        params.read()
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert not Path("sprung").exists()


def test_a_missing_file_says_where_it_was_looked_for(here: Path) -> None:
    with pytest.raises(UserError, match=f"^params.yaml is not in {here}: run from the top of the project$"):
        params.read()
    Path("params.yaml").mkdir()
    with pytest.raises(UserError, match="^params.yaml cannot be read: Is a directory$"):
        params.read()


@pytest.mark.parametrize("seed", ["-1", "1.5", "'7'", "true", "null", "[]", "9223372036854775808"])
def test_a_seed_is_a_whole_number_from_zero(seed: Any) -> None:
    write("seed: 0")
    assert params.seed() == 0
    write(f"seed: {seed}")
    with pytest.raises(UserError, match=r"^seed is .*: a whole number from 0 to 2\^63 - 1 is needed$"):
        params.seed()
