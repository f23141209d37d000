"""Sentences that arrive together are translated together, and everyone gets their own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence

import pytest

from nmt.batcher import BATCH, BATCH_CHARACTERS, Batcher, Busy

Step = Callable[[Batcher[str], "Model"], Coroutine[None, None, None]]


class Model:
    """Answers `<sentence> <n-best>`; waits in a batch until it is let go; fails at sentences that say so."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go, self.began = threading.Event(), threading.Semaphore(0)
        self.threads: set[int] = set()

    def __call__(self, sentences: Sequence[str], nbest: int) -> list[str]:
        self.batches.append(list(sentences))
        self.threads.add(threading.get_ident())
        self.began.release()
        assert self.go.wait(30)
        if any("poison" in sentence for sentence in sentences):
            raise ValueError("poison")
        return [f"{sentence} {nbest}" for sentence in sentences]


def play(step: Step, capacity: int = 1000) -> Model:
    """Run `step` with a batcher around a fresh model."""
    model = Model()

    async def main() -> None:
        async with Batcher(model, capacity) as batcher:
            await asyncio.wait_for(step(batcher, model), 60)

    try:
        asyncio.run(main())
    finally:
        model.go.set()
    return model


async def begun(model: Model) -> None:
    """Wait until the model has a batch in hand."""
    await asyncio.to_thread(model.began.acquire)


def test_what_arrives_while_the_model_is_busy_is_one_batch() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        first = asyncio.create_task(batcher.ask(["first"], 1))
        await begun(model)
        others = [asyncio.create_task(batcher.ask([f"other {n}"], 1)) for n in range(20)]
        await asyncio.sleep(0)
        assert batcher.waiting == 20
        model.go.set()
        assert await first == ["first 1"]
        assert await asyncio.gather(*others) == [[f"other {n} 1"] for n in range(20)]
        assert batcher.waiting == 0

    model = play(step)
    assert model.batches == [["first"], [f"other {n}" for n in range(20)]]
    assert len(model.threads) == 1


def test_requests_take_turns_and_keep_their_order() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        first = asyncio.create_task(batcher.ask(["first"], 1))
        await begun(model)
        long = asyncio.create_task(batcher.ask([f"long {n}" for n in range(3 * BATCH)], 1))
        await asyncio.sleep(0)
        short = asyncio.create_task(batcher.ask(["short"], 1))
        await asyncio.sleep(0)
        model.go.set()
        assert await short == ["short 1"] and not long.done()
        assert await long == [f"long {n} 1" for n in range(3 * BATCH)]
        await first

    model = play(step)
    assert model.batches[1][:3] == ["long 0", "short", "long 1"]
    assert all(len(batch) <= BATCH for batch in model.batches)


def test_a_batch_of_long_sentences_has_fewer() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        model.go.set()
        await batcher.ask(["x" * (BATCH_CHARACTERS // 4)] * 10, 1)

    assert [len(batch) for batch in play(step).batches] == [4, 4, 2]


def test_a_batch_asks_for_the_most_that_one_of_it_wants() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        model.go.set()
        assert await asyncio.gather(batcher.ask(["a"], 1), batcher.ask(["b"], 3)) == [["a 3"], ["b 3"]]

    play(step)


def test_only_the_sentence_at_fault_fails() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        model.go.set()
        results = await asyncio.gather(
            batcher.ask(["a"], 1), batcher.ask(["b", "poison"], 1), batcher.ask(["c"], 1), return_exceptions=True
        )
        assert results[0] == ["a 1"] and results[2] == ["c 1"]
        assert isinstance(results[1], ValueError)
        assert await batcher.ask(["d"], 1) == ["d 1"] and batcher.works

    play(step)


def test_more_than_fits_is_refused_and_what_waits_is_served() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        first = asyncio.create_task(batcher.ask(["first"], 1))
        await begun(model)
        fits = asyncio.create_task(batcher.ask(["a", "b", "c"], 1))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="3 sentences are waiting"):
            await batcher.ask(["d"], 1)
        model.go.set()
        assert await fits == ["a 1", "b 1", "c 1"] and await first == ["first 1"]
        assert await batcher.ask(["d"], 1) == ["d 1"]

    play(step, capacity=3)


def test_a_caller_that_gave_up_costs_no_further_batch() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        first = asyncio.create_task(batcher.ask(["first"], 1))
        await begun(model)
        gone = asyncio.create_task(batcher.ask(["gone"] * 10, 1))
        await asyncio.sleep(0)
        gone.cancel()
        model.go.set()
        await first
        assert await batcher.ask(["next"], 1) == ["next 1"]
        assert batcher.waiting == 0

    assert play(step).batches == [["first"], ["next"]]


def test_no_sentences_are_no_work() -> None:
    async def step(batcher: Batcher[str], model: Model) -> None:
        assert await batcher.ask([], 1) == []

    assert play(step).batches == []


def test_the_end_does_not_leave_callers_waiting() -> None:
    async def main(model: Model) -> None:
        async with Batcher(model, 10) as batcher:
            in_hand = asyncio.create_task(batcher.ask(["in hand"], 1))
            await begun(model)
            waiting = asyncio.create_task(batcher.ask(["waiting"], 1))
            await asyncio.sleep(0)
        results = await asyncio.wait_for(asyncio.gather(in_hand, waiting, return_exceptions=True), 10)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        assert not batcher.works

    model = Model()
    try:
        asyncio.run(main(model))
    finally:
        model.go.set()
    assert model.batches == [["in hand"]]
