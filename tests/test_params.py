"""params.yaml: every section parses, nothing is left over, and the paper's variants have the paper's values."""

from pathlib import Path
from typing import Any

import pytest
from dvc.utils.serialize import load_yaml, modify_yaml
from ruamel.yaml import YAML

from nmt.config import parse
from nmt.optim import learning_rate
from stages.check import Params, check

FILE = Path(__file__).resolve().parent.parent / "params.yaml"
TEXT = FILE.read_text(encoding="utf-8")
VALUES: dict[str, Any] = YAML(typ="safe", pure=True).load(TEXT)
PARSED = parse(Params, VALUES, "")

# Vaswani et al. 2017. Table 3 (and §6.1 for English-French): N, d_model, d_ff, h, d_k, d_v, P_drop, updates; §6.1: checkpoints averaged.
PAPER = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 100_000, 5),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 300_000, 20),
    "big-en-fr": (6, 1024, 4096, 16, 64, 64, 0.1, 300_000, 20),
}
STEP_SECONDS = {"base": 0.4, "big": 1.0, "big-en-fr": 1.0}  # §5.2
CHECKPOINT_SECONDS = 600  # §6.1: "written at 10-minute intervals"


def test_every_section_parses_and_fits_the_others_and_nothing_is_left_over() -> None:
    check(PARSED)
    assert PARSED.model_dump() == VALUES


def test_dvc_can_set_a_value_and_read_the_file_again(tmp_path: Path) -> None:
    # `dvc exp run -S` drops quotes, after which a colon inside {…} is no YAML to the parser that DVC reads with.
    copy = tmp_path / FILE.name
    copy.write_text(TEXT, encoding="utf-8")
    with modify_yaml(copy) as values:
        values["seed"] += 1
    assert load_yaml(copy) == VALUES | {"seed": VALUES["seed"] + 1}


def test_what_a_plain_run_builds_is_small() -> None:
    assert PARSED.reproduce.model_dump() == {"corpora": ["demo"], "variants": ["tiny"], "curves": []}


@pytest.mark.parametrize("name", PAPER)
def test_shape_and_length_of_training_are_the_papers(name: str) -> None:
    model, train, average = PARSED.variants[name].model, PARSED.variants[name].train, PARSED.variants[name].average
    shape = (model.layers, model.d_model, model.d_ff, model.heads, model.d_k, model.d_v, model.dropout)
    assert (*shape, train.updates, average.last) == PAPER[name]
    assert model.positions == "sinusoidal"  # §3.5
    assert model.heads * model.d_k == model.heads * model.d_v == model.d_model  # §3.2.2: d_k = d_v = d_model / h


@pytest.mark.parametrize("name", PAPER)
def test_training_is_the_papers(name: str) -> None:
    train = PARSED.variants[name].train
    assert (train.adam_beta1, train.adam_beta2, train.adam_epsilon, train.warmup_updates) == (0.9, 0.98, 1e-9, 4000)  # §5.3
    assert train.label_smoothing == 0.1  # §5.4
    assert (train.tokens_per_update, train.microbatches) == (25_000, 8)  # §5.1; §5.2: 8 GPUs
    assert train.checkpoint_every == CHECKPOINT_SECONDS / STEP_SECONDS[name]
    assert train.checkpoints_kept >= PARSED.variants[name].average.last


def test_the_highest_learning_rate_is_at_the_end_of_the_warmup() -> None:
    rates = {step: learning_rate(step, 512, PARSED.variants["base"].train.warmup_updates) for step in range(3000, 5000)}
    assert max(rates, key=rates.__getitem__) == 4000
    assert rates[4000] == pytest.approx(512**-0.5 * 4000**-0.5)


def test_decoding_is_the_papers() -> None:
    decode = PARSED.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_length_offset) == (4, 0.6, 50)  # §6.1


def test_vocabularies_are_the_papers() -> None:
    for name, pieces in (("wmt14-en-de", 37_000), ("wmt14-en-fr", 32_000)):  # §5.1
        corpus = PARSED.corpora[name]
        assert corpus.tokenizer.vocab_size == pieces and corpus.tokenizer.type == "bpe"
        assert corpus.test == ["newstest2014"]


def test_the_file_has_no_anchors_and_nothing_twice() -> None:
    """`dvc exp run -S` would write anchors out, so that one value would become several."""
    for number, line in enumerate(TEXT.splitlines(), start=1):
        value = line.split("#")[0]
        assert "&" not in value and "<<" not in value and not value.strip().startswith("*"), f"line {number}"
