"""The stage `score` reads what translate left, refuses what does not fit, and writes the same bytes again."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nmt.errors import UserError
from nmt.scoring import bleu
from stages.score import METRICS_LIMIT, main

SOURCES = ["Turn  on the lamp <b>now</b>", "", "One\u2028line only", "It is said that he said so", "Seen in training"]
REFERENCES = ["Schalte die Lampe <b>jetzt</b> an", "", "Nur eine\u0085Zeile", "Man sagt dass er es sagte", "Gesehen im Training"]
HYPOTHESES = ["Schalte die Lampe <b>jetzt</b> ein", "", "Nur eine Zeile", "Man sagt dass er das sagte", "Gesehen im Training"]
OUTPUTS = ("metrics.json", "scores.json", "sentences.parquet", "lengths.tsv")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stages before have written, of a corpus with the sets valid and test."""
    monkeypatch.chdir(tmp_path)
    for name in ("raw", "clean", "translations"):
        Path(name).mkdir()
    add_sets("test")
    write("clean/train.en", ["Something else", "Seen in training", "Turn on the lamp <b>now</b>"])
    write("clean/train.de", ["Etwas anderes", "Gesehen im Training", "Schalte die Lampe an"])
    valid = {"average": {"loss": 1.6, "perplexity": 4.95303, "tokens": 99}, "last": {"loss": 1.7, "perplexity": 5.47395, "tokens": 99}}
    Path("average.json").write_text(json.dumps({"checkpoints": [], "valid": valid}))
    return tmp_path


def add_sets(*tests: str) -> None:
    """Name the test sets in params.yaml and write all files of each."""
    corpora = f"corpora: {{demo: {{languages: {{src: en, tgt: de}}, test: [{', '.join(tests)}]}}}}"
    Path("params.yaml").write_text(f"{corpora}\nscore: {{comet: null}}\nhardware: {{device: cpu}}\n")
    for name in ("valid", *tests):
        write(f"raw/{name}.en", SOURCES)
        write(f"raw/{name}.de", REFERENCES)
        translate(name, HYPOTHESES)


def write(path: str, lines: list[str]) -> None:
    Path(path).write_bytes("".join(f"{line}\n" for line in lines).encode())


def translate(name: str, hypotheses: list[str]) -> None:
    """Write the translations of a set as the stage does; the first line is one that was cut."""
    write(f"translations/{name}.txt", hypotheses)
    best = [{"text": text, "score": -0.5, "log_prob": -1.0, "tokens": 3, "finished": index > 0} for index, text in enumerate(hypotheses)]
    write(f"translations/{name}.nbest.jsonl", [json.dumps([found] if found["text"] else [], ensure_ascii=False) for found in best])


def score() -> None:
    main("corpora.demo", Path("translations"), Path("raw"), Path("clean"), Path("average.json"), *map(Path, OUTPUTS))


def read(name: str) -> Any:
    return json.loads(Path(name).read_text())


def numbers(value: Any) -> list[Any]:
    return [number for found in value.values() for number in numbers(found)] if isinstance(value, dict) else [value]


def test_metrics_are_the_headline_of_the_scores(project: Path) -> None:
    score()
    sets = read("scores.json")["sets"]
    expected = bleu(HYPOTHESES, REFERENCES).score
    assert 0 < expected < 100
    assert read("metrics.json") == {
        "valid": {"bleu": expected, "perplexity": 4.953},
        "test": {"bleu": expected, "bleu_unseen": sets["test"]["bleu_unseen"]["score"], "chrf": sets["test"]["chrf"]["score"]},
    }
    assert read("scores.json")["perplexity"] == {"average": 4.953, "last": 5.474}


def test_valid_and_test_are_scored_alike(project: Path) -> None:
    score()
    sets = read("scores.json")["sets"]
    assert sets["valid"] == sets["test"]


def test_a_set_is_told_by_name_size_and_the_hashes_of_its_text(project: Path) -> None:
    score()
    found = read("scores.json")["sets"]["test"]
    assert found["lines"] == 5
    assert found["source_sha256"] == hashlib.sha256(Path("raw/test.en").read_bytes()).hexdigest()
    assert found["reference_sha256"] == hashlib.sha256(Path("raw/test.de").read_bytes()).hexdigest()
    assert (found["unfinished"], found["unseen_lines"], found["warnings"]) == (1, 3, [])


def test_every_score_has_a_signature_and_metrics_hold_numbers_only(project: Path) -> None:
    add_sets("first", "second", "third", "fourth", "fifth")
    score()
    for found in read("scores.json")["sets"].values():
        assert all("version:" in value["signature"] for value in found.values() if isinstance(value, dict) and "score" in value)
    assert "comet" not in pq.read_table("sentences.parquet").column_names
    assert list(read("metrics.json")) == ["valid", "first", "second", "third", "fourth"]
    assert len(numbers(read("metrics.json"))) == METRICS_LIMIT
    assert all(isinstance(number, float) for number in numbers(read("metrics.json")))


def test_without_unseen_lines_the_score_of_them_is_missing(project: Path) -> None:
    write("clean/train.en", [" ".join(line.split()) for line in SOURCES])
    score()
    assert read("scores.json")["sets"]["test"]["bleu_unseen"] is None
    assert "bleu_unseen" not in read("metrics.json")["test"]


def test_sentences_keep_every_line_and_name_their_scores(project: Path) -> None:
    score()
    table = pq.read_table("sentences.parquet")
    rows = [row for row in table.to_pylist() if row["set"] == "test"]
    assert table.num_rows == 2 * len(SOURCES)
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["source"] for row in rows] == SOURCES
    assert [row["reference"] for row in rows] == REFERENCES
    assert [row["hypothesis"] for row in rows] == HYPOTHESES
    assert [row["unseen"] for row in rows] == [False, True, True, True, False]
    assert [row["source_words"] for row in rows] == [5, 0, 3, 7, 3]
    assert [row["finished"] for row in rows] == [False, True, True, True, True]
    assert (rows[4]["chrf"], rows[4]["ter"], rows[0]["ter"]) == (100, 0, 20)  # one of five words
    assert b"|tok:tercom|" in table.schema.metadata[b"ter"]
    assert b"|tok:13a|" in table.schema.metadata[b"bleu"] and b"|nc:6|" in table.schema.metadata[b"chrf"]


def test_a_second_run_writes_the_same_bytes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score()
    first = [Path(name).read_bytes() for name in OUTPUTS]
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    score()
    assert [Path(name).read_bytes() for name in OUTPUTS] == first


def turn_comet_on(model: str) -> None:
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("comet: null", f"comet: {{model: {model}, precision: float32}}"))


def test_comet_stands_in_every_output_where_it_is_on(project: Path, comet_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_PYTHON", str(comet_python))
    turn_comet_on("Unbabel/known")
    score()
    sides = zip(SOURCES, HYPOTHESES, REFERENCES, strict=True)
    lines = [round((len(source) + 10 * len(hypothesis) + 100 * len(reference)) / 10, 2) for source, hypothesis, reference in sides]
    found = read("scores.json")["sets"]["test"]["comet"]
    assert found["score"] == read("metrics.json")["test"]["comet"] == pytest.approx(sum(lines) / 5)
    assert found["confidence"] > 0
    table = pq.read_table("sentences.parquet")
    assert [row["comet"] for row in table.to_pylist() if row["set"] == "test"] == lines
    assert found["signature"] == f"bs:1000|seed:12345|{table.schema.metadata[b'comet'].decode()}"


@pytest.mark.parametrize(("tests", "numbers_in_all", "there"), [(3, 8, True), (4, 8, False)])
def test_comet_is_no_ninth_number(
    project: Path, comet_python: Path, monkeypatch: pytest.MonkeyPatch, tests: int, numbers_in_all: int, there: bool
) -> None:
    monkeypatch.setenv("COMET_PYTHON", str(comet_python))
    add_sets(*(f"test{number}" for number in range(tests)))
    turn_comet_on("Unbabel/known")
    score()
    metrics = read("metrics.json")
    assert len(numbers(metrics)) == numbers_in_all and ("comet" in metrics["test0"]) == there
    assert sum("bleu" in found for found in metrics.values()) == tests + 1


def test_where_comet_cannot_run_nothing_is_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_PYTHON", "/bin/false")
    turn_comet_on("Unbabel/known")
    with pytest.raises(UserError, match="COMET_PYTHON is /bin/false"):
        score()
    assert not any(Path(name).exists() for name in OUTPUTS)


@pytest.mark.parametrize("short", ["raw/test.en", "raw/test.de", "translations/test.txt", "translations/valid.nbest.jsonl"])
def test_files_of_unequal_length_are_refused_with_all_counts(project: Path, short: str) -> None:
    path = Path(short)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(UserError) as error:
        score()
    assert f"{short} has 3 lines" in str(error.value)
    assert str(error.value).count("has 5 lines") == 3
    assert not any(Path(name).exists() for name in OUTPUTS)


def test_an_empty_set_is_refused(project: Path) -> None:
    for path in [*Path("raw").glob("test.*"), *Path("translations").glob("test.*")]:
        path.write_bytes(b"")
    with pytest.raises(UserError, match="at least one"):
        score()


def test_hypotheses_that_are_still_pieces_are_refused_before_anything_is_written(project: Path) -> None:
    translate("test", ["Sch@@ alte ein", "", "Nur ei@@ ne Zeile", "Ma@@ n sagt es", "Gese@@ hen"])
    with pytest.raises(UserError, match="set test: 4 of 5 hypotheses .*@@"):
        score()
    assert not any(Path(name).exists() for name in OUTPUTS)


def test_suspicious_hypotheses_are_named_in_the_scores_and_on_stderr(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("raw/test.en", "raw/test.de"):
        write(path, [f"Das ist Satz {number}" for number in range(50)])
    translate("test", ["Das ist &quot;Satz&quot; 0", *(f"Das ist Satz {number}" for number in range(1, 50))])
    score()
    (warning,) = read("scores.json")["sets"]["test"]["warnings"]
    assert warning.startswith("1 of 50 hypotheses") and "&quot;" in warning
    assert f"warning: set test: {warning}" in capsys.readouterr().err


def test_a_list_of_hypotheses_that_is_none_is_named_by_line(project: Path) -> None:
    write("translations/test.nbest.jsonl", ["[]", "[]", "[{}]", "[]", "[]"])
    with pytest.raises(UserError, match=r"translations/test.nbest.jsonl, line 3: "):
        score()


def test_references_of_another_line_or_language_are_refused_by_name(project: Path) -> None:
    rng = random.Random(1)
    words = {"en": "the house is old which there would their should between garden weather little water".split()}
    words["de"] = "das Haus ist alt welche dort würde ihr sollte zwischen Garten Wetter klein Wasser".split()
    text = {code: [" ".join(rng.choices(words[code], k=8)) for _ in range(300)] for code in words}
    for code in words:
        write(f"clean/train.{code}", text[code])
        write(f"raw/test.{code}", text[code][:100])
    translate("test", text["de"][:100])
    score()
    assert read("scores.json")["sets"]["test"]["warnings"] == []
    write("raw/test.de", text["de"][1:101])
    with pytest.raises(UserError, match="set test: hypotheses and references are shifted"):
        score()
    write("raw/test.de", text["en"][:100])
    with pytest.raises(UserError, match="set test: 100% of the longer references"):
        score()


def test_lengths_count_the_lines_of_each_number_of_words(project: Path) -> None:
    score()
    rows = [line.split("\t") for line in Path("lengths.tsv").read_text().splitlines()]
    assert rows[0] == ["set", "words", "source", "reference", "hypothesis"]
    assert [row[1:] for row in rows if row[0] == "test"] == [
        ["0", "1", "1", "1"],
        ["1", "0", "0", "0"],
        ["2", "0", "0", "0"],
        ["3", "2", "2", "2"],
        ["4", "0", "0", "0"],
        ["5", "1", "1", "1"],
        ["6", "0", "1", "1"],
        ["7", "1", "0", "0"],
    ]


def test_the_table_shows_each_set_and_each_signature(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score()
    shown = capsys.readouterr().out
    found = read("scores.json")["sets"]["test"]
    assert f"{found['bleu']['score']:.2f} ± {found['bleu']['confidence']:.2f}" in shown
    for metric in ("bleu", "bleu_intl", "bleu_moses_split", "chrf++", "ter"):
        assert f" {found[metric]['signature']}\n" in shown
