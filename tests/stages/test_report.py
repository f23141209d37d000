"""The page stands alone, repeats to the byte, escapes what the corpus says, and tells what its inputs tell."""

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nmt.errors import UserError
from stages.report import length_figure, main, read_training

HEADER = "update\ttokens\tloss\tperplexity\tvalid_loss\tvalid_perplexity\tlearning_rate\tgradient_norm\tskipped\n"
OTHERS = ("bleu_uncased", "bleu_intl", "bleu_moses", "bleu_moses_split", "bleu_moses_split_quotes", "chrf", "chrf++", "ter")
SOURCES = ["Turn on <b>{name}</b> & <script>alert(1)</script>", "مرحبا بالعالم", "", "https://example.com/a.png"]
VOID = {"meta", "br", "wbr", "path", "use"}


class Page(HTMLParser):
    """What a browser would make of it: tags with their attributes, text, headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self) -> str:
        return " ".join(" ".join(data for tag, data in self.texts if tag != "style").split())


def score(value: float, **more: Any) -> dict[str, Any]:
    return {"score": value, "signature": f"nrefs:1|tok:13a|at:{value}", **more}


def set_scores(bleu: float, unseen: float | None) -> dict[str, Any]:
    sides = {"source": 1234, "reference": 4, "hypothesis": 5}
    return {
        "warnings": [],
        "unfinished": 3,
        "length_ratio": 0.875,
        "share_copied": {"reference": 0.25, "hypothesis": 0.375},
        "lines": 4321,
        "unseen_lines": 0 if unseen is None else 777,
        "bleu": score(bleu, confidence=1.25),
        "bleu_unseen": None if unseen is None else score(unseen, confidence=1.75),
        **{metric: score(bleu + 5 + index, confidence=0.5) for index, metric in enumerate(OTHERS)},
        "words": sides,
        "blank_lines": sides,
        "share_equal_to_source": 0.125,
        "share_repeating": {"source": 0.0, "reference": 0.0, "hypothesis": 0.25},
    }


def sentences(sources: list[str]) -> pa.Table:
    count = len(sources)
    words = [len(source.split()) for source in sources]
    return pa.table(
        {
            "set": ["valid"] * count + ["test"] * count,
            "line": [*range(1, count + 1)] * 2,
            "source": ["not shown"] * count + sources,
            "reference": ["ein & <i>zwei</i>"] * 2 * count,
            "hypothesis": ["ein & <i>drei</i>"] * (2 * count - 1) + [""],
            "unseen": [True] * 2 * count,
            "finished": [True] * (2 * count - 1) + [False],
            "chrf": [50.0] * 2 * count,
            "bleu": [40.0] * 2 * count,
            "source_words": words * 2,
            "reference_words": [3] * 2 * count,
            "hypothesis_words": [3] * 2 * count,
        }
    )


TRAIN_EN = "train, en 16,988 50,505 101,010 2.25 85 5 2,525"


def side(number: int) -> dict[str, Any]:
    """What `shard` counts of one side of a set, as far as the page shows it."""
    return {
        "words": number * 10_101,
        "pieces": number * 20_202,
        "pieces_per_word": 2.25,
        "longest": number * 17,
        "byte_pieces": number,
        "vocabulary_used": number * 505,
    }


def write_inputs(folder: Path, model: Path) -> None:
    """What the stages before have written, with numbers that are easily told apart, and the weights of `model`."""
    text = {"lines": 19034, "sha256": {"en": "e" * 64, "de": "d" * 64}, "parts": [{"name": "a", "lines": 19034}]}
    files: dict[str, Any] = {
        "manifest.json": {"languages": {"src": "en", "tgt": "de"}, "source": {"kind": "wheel"}, "sets": {"train": text}, "counted": {}},
        "cleaning.json": {
            "read": 19034,
            "kept": 16988,
            "dropped": {"blank": 12, "ratio": 2034},
            "changed": {"join_whitespace": 214},
            "leaked": 323,
        },
        "statistics.json": {name: {"pairs": pairs, "src": side(5), "tgt": side(6)} for name, pairs in (("train", 16988), ("valid", 777))},
        "average.json": {"checkpoints": [{"step": 1800, "sha256": "a" * 64}, {"step": 2000, "sha256": "b" * 64}]},
        "scores.json": {"sets": {"valid": set_scores(31, 32), "test": set_scores(21, 19)}, "perplexity": {"average": 5.125, "last": 6.5}},
        "averaged/config.json": {
            "train": {"updates": 2000, "warmup_updates": 400},
            "languages": {"src": "en", "tgt": "de"},
            "seed": 2017,
            "parameters": 7578624,
        },
    }
    (folder / "params.yaml").write_text("decode: {beam_size: 4, length_penalty: 0.65}")
    shutil.copytree(model, folder / "averaged")
    config = folder / "averaged" / "config.json"
    files["averaged/config.json"] |= json.loads(config.read_text()) | {"parameters": 7578624}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "training.tsv").write_text(HEADER + "1000\t5e6\t4.5\t60\t\t\t1e-3\t1\t0\n2000\t1e7\t3.25\t9\t2.5\t12.1825\t7e-4\t1\t0\n")
    pq.write_table(sentences(SOURCES), folder / "sentences.parquet")


def report(folder: Path, corpus: str = "demo", variant: str = "tiny") -> Page:
    names = (
        "manifest.json",
        "cleaning.json",
        "statistics.json",
        "training.tsv",
        "average.json",
        "averaged",
        "scores.json",
        "sentences.parquet",
        "report.html",
    )
    with contextlib.chdir(folder):
        main(corpus, variant, *(folder / name for name in names))
    return Page((folder / "report.html").read_text("utf-8"))


@pytest.fixture
def inputs(tmp_path: Path, model_folder: Path) -> Path:
    """A folder of inputs to be changed."""
    write_inputs(tmp_path, model_folder)
    return tmp_path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Page:
    """The page of the inputs as they are."""
    folder = tmp_path_factory.mktemp("report")
    write_inputs(folder, model_folder)
    return report(folder)


def change_sets(folder: Path, **sets: Any) -> None:
    path = folder / "scores.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sets": sets}))


def test_nothing_is_fetched(page: Page) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith(("#", "data:image/png;base64,"))
        assert "url(" not in (attributes.get("style") or "").replace("url(#", "")
    style = "".join(data for tag, data in page.texts if tag == "style")
    assert style and "url(" not in style and "@import" not in style


def test_a_second_run_writes_the_same_bytes(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(inputs)
    first = (inputs / "report.html").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.chdir(inputs)
    os.utime("scores.json", (1, 1))
    report(Path("."))
    assert Path("report.html").read_bytes() == first
    assert b"\r" not in first


def test_what_the_corpus_says_is_text(page: Page) -> None:
    for source in filter(None, SOURCES):
        assert source in page.text()
    assert "ein & <i>" in page.text()
    assert "not shown" not in page.text()


def test_every_text_has_its_language_and_finds_its_own_direction(page: Page) -> None:
    shown = [attributes for tag, attributes in page.tags if tag == "dd" and "lang" in attributes]
    assert Counter(attributes["lang"] for attributes in shown) == {"en": 3, "de": 6}  # the blank line is not shown
    assert {attributes["dir"] for attributes in shown} == {"auto"}


def test_headings_go_down_by_one_and_ids_are_unique_and_found(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert set(ids.values()) == {1}
    for _, attributes in page.tags:
        for name in ("href", "aria-labelledby"):
            if name in attributes and not str(attributes[name]).startswith("data:"):
                assert str(attributes[name]).removeprefix("#") in ids


def test_every_figure_has_a_caption_and_scrolled_tables_can_be_reached(page: Page) -> None:
    names = [tag for tag, _ in page.tags]
    assert names.count("figure") == names.count("figcaption") == names.count("svg") == 10
    scrolled = [attributes for _, attributes in page.tags if attributes.get("class") == "scroll"]
    assert scrolled and all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolled)


def test_the_page_tells_what_its_inputs_tell(page: Page) -> None:
    text = page.text()
    told = (
        "7,578,624 parameters",
        "16,988 pairs",
        "21.0 ± 1.2, 4,321 lines",
        "19.0 ± 1.8, 777 lines",
        "10,000,000 target tokens",
        "5.125",
        "length_penalty 0.65",
    )
    for words in (
        *told,
        TRAIN_EN,
        "323 have a source",
        "update 1,800 , 2,000",
        "e" * 64,
        "a" * 64,
        "ratio 2,034",
        TRAIN_EN,
        "323 have a source",
        "layers 1",
        "12.5 %",
        "37.5 %",
        "seed 2017",
    ):
        assert words.replace(" ,", ",") in text.replace("\u00a0", " ").replace(" ,", ","), words
    assert "nrefs:1| tok:13a| at:21" in text


def test_the_papers_row_stands_beside_ours_where_it_has_one(inputs: Path, page: Page) -> None:
    assert "Beside the paper" not in page.text()
    change_sets(inputs, valid=set_scores(31, 32), newstest2014=set_scores(21, 19))
    table = pq.read_table(inputs / "sentences.parquet").to_pylist()
    renamed = [row | {"set": "newstest2014" if row["set"] == "test" else row["set"]} for row in table]
    pq.write_table(pa.Table.from_pylist(renamed), inputs / "sentences.parquet")
    text = report(inputs, "wmt14-en-de", "base").text()
    assert "ours, bleu_moses_split_quotes 30.00 40.00" in text  # newstest2014 and valid, as set_scores counts them
    assert "the paper's 27.3 25.8" in text


def test_attention_is_shown_for_lines_of_some_pieces(inputs: Path) -> None:
    change = pq.read_table(inputs / "sentences.parquet").to_pylist()
    shown = [row | {"source": f"der Baum {row['line']}", "hypothesis": "the tree"} for row in change]
    pq.write_table(pa.Table.from_pylist(shown), inputs / "sentences.parquet")
    page = report(inputs)
    weights = [attributes["style"] for _, attributes in page.tags if "--weight" in (attributes.get("style") or "")]
    assert weights and all(0 <= int(re.findall(r"\d+", str(weight))[0]) <= 100 for weight in weights)
    assert page.text().count("Attention of line") == 0 and "</s>" in page.text()


def test_without_unseen_lines_the_page_says_so(inputs: Path) -> None:
    change_sets(inputs, valid=set_scores(31, None), test=set_scores(21, None))
    assert "BLEU, unseen sources none all were trained on" in report(inputs).text()


def test_comet_is_a_row_where_it_is(inputs: Path, page: Page) -> None:
    assert "COMET" not in page.text()
    change_sets(
        inputs,
        valid=set_scores(31, 3) | {"comet": score(85.34, confidence=0.25)},
        test=set_scores(21, 3) | {"comet": score(80.12, confidence=0.5)},
    )
    text = report(inputs).text()
    assert "comet 85.34 ± 0.25 80.12 ± 0.50" in text and "at:80.12" in text


def test_warnings_stand_above_the_scores(inputs: Path) -> None:
    change_sets(inputs, valid=set_scores(31, 3), test=set_scores(21, 3) | {"warnings": ["9 hypotheses still hold `&quot;`"]})
    text = report(inputs).text()
    assert text.index("test: 9 hypotheses still hold `&quot;`") < text.index("In percent")


def test_a_training_without_validation_has_its_page(inputs: Path) -> None:
    (inputs / "training.tsv").write_text(HEADER + "1\t10\t9.5\t8000\t\t\t1e-3\t1\t0\n")
    assert "The lowest on valid" not in report(inputs).text()


@pytest.mark.parametrize("table", ["", HEADER, "update\tloss\n1\t2\n", HEADER + "1\t2\tx\n", "<html>"])
def test_another_table_is_refused_and_leaves_nothing(inputs: Path, table: str) -> None:
    (inputs / "training.tsv").write_text(table)
    with pytest.raises(UserError, match="training.tsv is not a table of a training"):
        report(inputs)
    assert not list(inputs.glob("report*"))


def test_columns_keep_their_numbers_and_their_gaps(inputs: Path) -> None:
    columns = read_training(inputs / "training.tsv")
    assert columns["update"] == [1000, 2000]
    assert columns["valid_perplexity"] == [None, 12.1825]


def test_the_longest_hundredth_of_the_lines_does_not_stretch_the_figure() -> None:
    row = {"source_words": 10, "reference_words": 10, "hypothesis_words": 10}
    figure = length_figure([row] * 200 + [dict.fromkeys(row, 5000)])
    assert max(float(number) for number in re.findall(r">([\d.]+)</text>", figure.split("axis_2")[0])) <= 30
