"""The service as a real process under a real load: one result for each sentence, that of `nmt translate`, whatever else is sent."""

import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nmt.guard
import nmt.server
from nmt.bundle import load_bundle
from nmt.errors import UserError
from nmt.guard import Refused
from nmt.server import listen
from nmt.service import Limits, accept
from nmt.tokenizer import Tokenizer
from nmt.translation import Translation, Translator
from tests.running_service import ask, in_thread, start, translator

LINES = ["the house is old.", "", "\u00a0\u200b", "das Haus …", "x\u2028y \x85", "😀 дом", "a </s> b"]


@pytest.fixture(scope="module")
def port(taught_model_folder: Path) -> Iterator[int]:
    """A service that all tests use: what one of them did to it would fail the next."""
    process, port = start(taught_model_folder)
    try:
        yield port
        assert process.poll() is None
        assert ask(port, "/health")[0] == 200
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.essential
def test_two_hundred_at_once_get_each_their_own(port: int, taught_model_folder: Path, sentences: list[str]) -> None:
    def one(number: int) -> list[str]:
        status, found = ask(port, "/translate", {"text": sentences[number] if number % 2 else [sentences[number], sentences[number + 200]]})
        assert status == 200, found
        return [translation["text"] for translation in found["translations"]]

    with ThreadPoolExecutor(200) as pool:
        results = list(pool.map(one, range(200)))
    expected = [result[0].text for result in translator(taught_model_folder).translate(sentences[:400])]
    assert results == [[expected[n]] if n % 2 else [expected[n], expected[n + 200]] for n in range(200)]
    assert len({text for result in results for text in result}) > 200  # or a mixed-up one could hide


@pytest.mark.slow
def test_a_request_is_answered_as_nmt_translate_would(port: int, taught_model_folder: Path) -> None:
    status, found = ask(port, "/translate", {"text": LINES, "nbest": 3})
    assert status == 200
    expected = translator(taught_model_folder).translate(LINES, 3)
    for line, translation, result in zip(LINES, found["translations"], expected, strict=True):
        assert translation["text"] == (result[0].text if line.strip("\u200b \u00a0") else "")
        hypotheses = [Translation(**hypothesis) for hypothesis in translation["hypotheses"]]
        assert [one.text for one in hypotheses] == [one.text for one in result]
        assert [one.score for one in hypotheses] == pytest.approx([one.score for one in result], abs=1e-5)
    assert ask(port, "/translate", {"text": []}) == (200, {"translations": []})
    assert ask(port, "/translate", {"text": "the house\r"}) == ask(port, "/translate", {"text": ["the house"]})  # a CR is no text


REFUSED: dict[str, tuple[int, Any]] = {
    "10 MB": (413, b'{"text": "' + b"a" * 10_000_000 + b'"}'),
    "10,000 sentences": (422, {"text": ["a"] * 10_000}),
    "a long sentence": (422, {"text": ["a", "the " * 1001]}),
    "a sentence of many bytes": (422, {"text": "\U0001f600" * 300}),  # four tokens each
    "a NUL": (422, {"text": "a\0b"}),
    "a raw NUL": (422, b'{"text": "a\0b"}'),
    "two lines": (422, {"text": "a\nb"}),
    "half a character": (422, b'{"text": "\\ud800"}'),
    "half a character in a list": (422, b'{"text": ["a", "\\ud800"]}'),
    "not UTF-8": (400, b'{"text": "\xff"}'),
    "no JSON": (422, b"Hello."),
    "no body": (422, b""),
    "no text": (422, {}),
    "a number": (422, {"text": 7}),
    "null among sentences": (422, {"text": ["a", None]}),
    "an unknown key": (422, {"text": "a", "beams": 4}),
    "too many of the best": (422, {"text": "a", "nbest": 5}),
    "none of the best": (422, {"text": "a", "nbest": 0}),
    "deep": (400, b"[" * 100_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_in_a_sentence_and_the_service_lives(name: str, port: int) -> None:
    status, body = REFUSED[name]
    answer = ask(port, "/translate", raw=body) if isinstance(body, bytes) else ask(port, "/translate", body)
    assert answer[0] == status, answer
    assert list(answer[1]) == ["error"] and 0 < len(answer[1]["error"]) < 200
    assert ask(port, "/translate", {"text": "a"})[0] == 200


@pytest.mark.slow
def test_what_is_wrong_with_a_request_is_said_in_plain_words(port: int) -> None:
    for path, body, sentence in (
        ("/translate", b"Hello.", "the body is no JSON, from character 0 on"),
        ("/translate", b"", "the body must be a JSON object with text, nbest"),
        ("/translate", b"[]", "the body must be a JSON object with text, nbest"),
        ("/translate", b'"text"', "the body must be a JSON object with text, nbest"),
        ("/translate", b"{}", "text is missing"),
        ("/translate", b'{"text": 7}', "text must be text or a list"),
        ("/translate", b'{"text": null}', "text must be text or a list"),
        ("/translate", b'{"text": ["a", 7]}', "text[1] must be text"),
        ("/translate", b'{"text": "a", "nbset": 2}', "nbset is unknown: did you mean nbest?"),
        ("/translate", b'{"text": "a", "nbest": 0}', "nbest must be at least 1"),
        ("/translate", b'{"text": "a", "nbest": "2"}', "nbest must be a whole number"),
        ("/attention", b'{"source": "a", "target": []}', "target must be text"),
        ("/attention", b'{"source": "a"}', "target is missing"),
        ("/attention", b"7", "the body must be a JSON object with source, target"),
    ):
        assert ask(port, path, raw=body) == (422, {"error": sentence})


@pytest.mark.slow
def test_a_body_that_is_not_called_json_is_told_how(port: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/translate", b'{"text": "a"}')  # as a form, as curl too would send it
    with error.value as answer:
        assert answer.code == 422 and b"Content-Type: application/json" in answer.read()


@pytest.mark.slow
def test_other_paths_and_methods_are_refused(port: int) -> None:
    assert ask(port, "/nowhere") == (404, {"error": "Not Found"})
    assert ask(port, "/translate", method="GET") == (405, {"error": "Method Not Allowed"})


@pytest.mark.slow
def test_a_map_has_a_row_for_each_token_and_one_too_large_is_refused(port: int, taught_model_folder: Path) -> None:
    status, found = ask(port, "/attention", {"source": "the house", "target": "das"})
    tokenizer = load_bundle(taught_model_folder).tokenizer
    source, target = ([*tokenizer.pieces(ids), "</s>"] for ids in tokenizer.encode(["the house", "das"]))
    assert (status, found["source"], found["target"], len(found["layers"])) == (200, source, target, 2)
    assert [len(row) for row in found["layers"][1]] == [len(source)] * len(target)
    assert ask(port, "/attention", {"source": "the " * 200, "target": "das"})[0] == 422


@pytest.mark.slow
def test_the_page_needs_nothing_from_elsewhere(port: int) -> None:
    status, page = ask(port, "/")
    assert status == 200
    assert not re.search(r"https?://|src=|@import", page)


@pytest.mark.slow
def test_health_and_metrics_tell_of_the_work(port: int) -> None:
    def sentences_so_far() -> float:
        status, text = ask(port, "/metrics")
        assert status == 200
        return float(re.search(r"^nmt_sentences_total (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    before = sentences_so_far()
    assert ask(port, "/translate", {"text": ["a", "b", "c"]})[0] == 200
    assert sentences_so_far() == before + 3
    assert 'nmt_requests_total{path="/translate",status="200"}' in ask(port, "/metrics")[1]
    status, health = ask(port, "/health")
    assert (status, health["status"], health["waiting"]) == (200, "ok", 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_good_order_with_clients_connected(number: signal.Signals, taught_model_folder: Path, sentences: list[str]) -> None:
    process, port = start(taught_model_folder)
    with socket.create_connection(("127.0.0.1", port)) as silent, ThreadPoolExecutor(1) as pool:
        silent.sendall(b"POST /translate HTT")
        asked = pool.submit(ask, port, "/translate", {"text": sentences[:128]})  # two batches
        while "nmt_batch_sentences_count 0.0" in ask(port, "/metrics")[1]:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        status, found = asked.result()
    assert (process.returncode, said) == (0, "nmt serve: stopped\n")
    assert status == 200 and len(found["translations"]) == 128  # what was being translated came back


@pytest.mark.slow
def test_what_does_not_end_in_time_is_told_that_the_service_stops(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()

    def waits(self: Translator, lines: list[str], nbest: int = 1) -> list[list[Translation]]:
        began.set()
        assert go.wait(30)
        return []

    monkeypatch.setattr(Translator, "translate", waits)
    monkeypatch.setattr(nmt.server, "STOP_SECONDS", 1)
    try:
        with ThreadPoolExecutor(2) as pool:
            with in_thread(model_folder) as port:
                asked = [pool.submit(ask, port, "/translate", {"text": "a"}) for _ in range(2)]
                assert began.wait(30)
            assert [one.result() for one in asked] == [(503, {"error": "the service is stopping"})] * 2
    finally:
        go.set()


@pytest.mark.slow
def test_slow_clients_are_sent_away_and_others_served_meanwhile(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(nmt.guard, "BODY_SECONDS", 0.5)
    head = b"POST /translate HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    with in_thread(model_folder) as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(20)]
        for number, client in enumerate(clients):
            client.sendall(head if number % 2 else head + b'\r\n{"text": ')  # half of them within the head, half within the body
        assert ask(port, "/translate", {"text": "the house"})[0] == 200
        for number, client in enumerate(clients):
            answer = client.recv(1000)
            assert answer == b"" if number % 2 else answer.startswith(b"HTTP/1.1 408")
            client.close()
        assert ask(port, "/translate", {"text": "the house"})[0] == 200


@pytest.mark.slow
def test_a_failure_of_ours_is_told_and_the_next_request_served(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Translator.translate

    def fails(self: Translator, lines: list[str], nbest: int = 1) -> list[list[Translation]]:
        if "bad luck" in lines:
            raise RuntimeError("out of memory")
        return real(self, lines, nbest)

    monkeypatch.setattr(Translator, "translate", fails)
    with in_thread(model_folder) as port:
        status, content = ask(port, "/translate", {"text": "bad luck"})
        assert status == 500 and "out of memory" not in str(content)
        assert ask(port, "/translate", {"text": "the house"})[0] == 200


@pytest.mark.slow
def test_a_line_too_long_for_learned_positions_is_the_callers_error(learned_model_folder: Path) -> None:
    with in_thread(learned_model_folder, Limits(tokens=2000)) as port:
        status, content = ask(port, "/translate", {"text": ["a", "the " * 1100]})
        assert status == 422 and "learned positions" in content["error"], content


def test_a_taken_or_impossible_address_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1, port {port}: .*in use; name another --host or --port"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match="no.such.host.invalid, port 80"):
        listen("no.such.host.invalid", 80)


def test_at_the_limits_a_request_is_taken(tokenizer_file: Path) -> None:
    limits, tokenizer = Limits(sentences=2, tokens=3), Tokenizer.load(tokenizer_file)
    at_most = [" ".join(["the"] * 3), "the"]
    assert accept(at_most, limits, tokenizer) == at_most
    for beyond in (["a", "b", "c"], [" ".join(["the"] * 4)]):
        with pytest.raises(Refused):
            accept(beyond, limits, tokenizer)
