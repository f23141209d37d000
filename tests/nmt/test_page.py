"""The page of `nmt serve` in a real browser, by the DevTools protocol. Skipped where there is no Chromium."""

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from nmt.bundle import load_bundle
from tests.running_service import ask, in_thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


class Browser:
    """A headless Chromium with one tab; what the page fetched and complained of is kept."""

    def __init__(self, profile: Path) -> None:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen([str(CHROMIUM), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.numbers, self.fetched, self.complaints = itertools.count(1), list[str](), list[Any]()
        until = time.monotonic() + 60
        while not (profile / "DevToolsActivePort").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        port = (profile / "DevToolsActivePort").read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            [page] = [tab for tab in json.load(answer) if tab["type"] == "page"]
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a DevTools method."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == number:
                return message["result"]
            if message.get("method") == "Network.requestWillBeSent":
                self.fetched.append(message["params"]["request"]["url"])
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                self.complaints.append(message["params"])

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until the expression is true."""
        until = time.monotonic() + 30
        while not self.js(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def open(self, port: int) -> None:
        """Open the service's page and wait until it knows the model."""
        self.fetched.clear()
        self.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        self.wait("document.readyState === 'complete' && document.getElementById('languages').textContent !== ''")

    def translate(self, text: str) -> None:
        """Type the text and press Ctrl+Enter."""
        self.js("document.getElementById('source').select()")
        self.call("Input.insertText", text=text)
        self.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", modifiers=2, windowsVirtualKeyCode=13)


@pytest.fixture(scope="module")
def service(taught_model_folder: Path) -> Iterator[int]:
    with in_thread(taught_model_folder) as port:
        yield port


@pytest.fixture(scope="module")
def browser(service: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield browser
    finally:
        browser.socket.close()
        browser.process.terminate()
        browser.process.wait(30)


@pytest.mark.parametrize("width", [375, 1280])
def test_a_sentence_its_n_best_and_where_the_decoder_looked(width: int, browser: Browser, service: int, taught_model_folder: Path) -> None:
    text = "the house is old <b>&amp;</b> das Haus"
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    browser.open(service)
    assert browser.js("document.querySelector('h1').textContent") == "Translate English to German"
    browser.translate(text)
    browser.wait("!document.getElementById('attention').hidden")
    _, found = ask(service, "/translate", {"text": text, "nbest": 4})
    expected = [hypothesis["text"] for hypothesis in found["translations"][0]["hypotheses"]]
    assert browser.js("[...document.querySelectorAll('.one .text')].map(e => e.textContent)") == expected
    tokenizer = load_bundle(taught_model_folder).tokenizer
    for chosen in (0, 1):
        browser.js(f"document.querySelectorAll('.one input')[{chosen}].click()")
        source, target = (len(ids) + 1 for ids in tokenizer.encode([text, expected[chosen]]))
        browser.wait(f"document.querySelectorAll('#map tbody tr').length === {target}")
        assert browser.js("document.querySelectorAll('#map tbody td').length") == source * target
    assert browser.js("document.getElementById('layer').value") == "1"  # the last of two
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    assert {url.removeprefix(f"http://127.0.0.1:{service}") for url in browser.fetched} <= {"/", "/health", "/translate", "/attention"}
    assert browser.complaints == []


def test_what_is_refused_is_said_on_the_page(browser: Browser, service: int) -> None:
    browser.open(service)
    browser.translate("the " * 1001)
    browser.wait("!document.getElementById('error').hidden")
    assert "of at most 1,000" in browser.js("document.getElementById('error').textContent")
    browser.translate("the house")
    browser.wait("document.getElementById('error').hidden && !document.getElementById('found').hidden")
