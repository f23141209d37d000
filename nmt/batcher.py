"""Dynamic batching: sentences that arrive while the model is busy are translated together next.

No request waits for others to come: the first one starts at once, alone, and those that arrive meanwhile form the next batch. Requests take
turns, a sentence each, and a batch of long ones has fewer, so that nobody waits behind a thousand sentences of somebody else. One thread
uses the model.

    waiting   A: a1 a2 a3 … a900    B: b1    C: c1 c2      ->   batch   a1 b1 c1 a2 c2 a3 … up to BATCH sentences
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

BATCH = 64  # sentences at most
BATCH_CHARACTERS = 8000  # no more are added beyond

Result = TypeVar("Result")
Other = TypeVar("Other")
Translate = Callable[[Sequence[str], int], Sequence[Result]]
"""(sentences, n-best) -> what is asked for of each sentence; called in one thread."""


class Busy(Exception):
    """So many sentences wait already that no more are taken."""


@dataclass
class _Request(Generic[Result]):
    """One caller's sentences."""

    sentences: list[str]
    nbest: int
    results: dict[int, Result] = field(default_factory=dict)  # by place in `sentences`
    taken: int = 0  # sentences that went into a batch
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[Result]):
    """Calls `translate` for whoever asks. Used within one event loop, as an asynchronous context manager.

    At most `capacity` sentences wait; `report` is told the size of each batch.
    """

    def __init__(self, translate: Translate[Result], capacity: int, report: Callable[[int], None] = lambda size: None) -> None:
        self._translate, self._capacity, self._report = translate, capacity, report
        self._requests: deque[_Request[Result]] = deque()  # with sentences that no batch has taken yet
        self._open: set[asyncio.Future[None]] = set()  # of all requests that are not answered yet
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self.waiting = 0  # sentences

    async def __aenter__(self) -> "Batcher[Result]":
        self._work = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._work.cancel()
        for done in list(self._open):
            done.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def works(self) -> bool:
        """Whether requests are still being served."""
        return not self._work.done()

    async def ask(self, sentences: Sequence[str], nbest: int) -> list[Result]:
        """The results for the sentences, in order. Raises Busy, and what `translate` raises for one of them when it is alone."""
        if self.waiting + len(sentences) > self._capacity:
            raise Busy(f"{self.waiting:,} sentences are waiting already")
        request = _Request[Result](list(sentences), nbest)
        if sentences:
            self.waiting += len(sentences)
            self._requests.append(request)
            self._arrived.set()
            self._open.add(request.done)
            request.done.add_done_callback(self._open.discard)
            await request.done
        return [request.results[place] for place in range(len(sentences))]

    async def run(self, function: Callable[..., Other], *arguments: object) -> Other:
        """`function(*arguments)` in the thread that uses the model, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._take()
            if not self._requests:
                self._arrived.clear()
            if not batch:
                continue
            self._report(len(batch))
            results = await self.run(
                self._attempt, [request.sentences[place] for request, place in batch], max(request.nbest for request, _ in batch)
            )
            for (request, place), result in zip(batch, results, strict=True):
                self._deliver(request, place, result)

    def _take(self) -> list[tuple[_Request[Result], int]]:
        """The next batch: sentences by request and place, the requests in turn."""
        batch: list[tuple[_Request[Result], int]] = []
        characters = 0
        while self._requests and len(batch) < BATCH and characters < BATCH_CHARACTERS:
            request = self._requests.popleft()
            if request.done.done():  # failed, or its caller has gone
                self.waiting -= len(request.sentences) - request.taken
                continue
            batch.append((request, request.taken))
            characters += len(request.sentences[request.taken])
            request.taken += 1
            self.waiting -= 1
            if request.taken < len(request.sentences):
                self._requests.append(request)
        return batch

    def _attempt(self, sentences: Sequence[str], nbest: int) -> Sequence[Result | Exception]:
        """Results; where a batch fails, each sentence is tried alone, so that only the one at fault fails."""
        try:
            return self._translate(sentences, nbest)
        except Exception as error:
            if len(sentences) == 1:
                return [error]
            log.warning("a batch of %d sentences failed (%r): each is tried alone", len(sentences), error)
            return [self._attempt([sentence], nbest)[0] for sentence in sentences]

    def _deliver(self, request: _Request[Result], place: int, result: Result | Exception) -> None:
        if request.done.done():
            return
        if isinstance(result, Exception):
            request.done.set_exception(result)
            return
        request.results[place] = result
        if len(request.results) == len(request.sentences):
            request.done.set_result(None)
