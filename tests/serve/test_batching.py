"""The queue: who shares a batch, who is dropped, and what an error does."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from regard.search.state import WATCH
from regard.serve.batching import Pool
from regard.serve.settings import RequestError


class Model:
    """A model whose steps wait until they may go on."""

    def __init__(self) -> None:
        self.may_step = threading.Event()
        self.steps = 0

    def step(self) -> None:
        self.may_step.wait(5)
        self.steps += 1


def shout(translator, inputs):
    """The work of these tests: notes the batch, takes a step, and returns each input in capitals."""
    translator.batches.append(list(inputs))
    translator.model.step()
    return [ValueError(one) if one == "bad" else one.upper() for one in inputs]


@pytest.fixture
def translator():
    model = Model()
    model.may_step.set()
    return SimpleNamespace(model=model, batches=[])


@pytest.fixture
def make_pool(translator):
    pools = []

    def make(window=0.0, limit=100):
        pools.append(Pool([translator], limit, window, 8))
        return pools[-1]

    yield make
    translator.model.may_step.set()
    for pool in pools:
        pool.close(5)
        assert not pool.workers[0].is_alive()


async def settle(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_requests_within_the_window_share_a_batch(translator, make_pool):
    async def run():
        pool = make_pool(window=0.2)
        return await asyncio.gather(*(pool.submit(shout, text, key=1) for text in "abc"))

    assert asyncio.run(run()) == ["A", "B", "C"]
    assert translator.batches == [["a", "b", "c"]]


def test_what_waits_while_the_worker_is_busy_is_batched_by_key_in_order(translator, make_pool):
    async def run():
        pool = make_pool()
        translator.model.may_step.clear()
        first = pool.submit(shout, "first", key=1)
        await settle(lambda: translator.batches)
        keys = [1, 2, 1, None, None, 2]
        others = [pool.submit(shout, f"{i}", key=key) for i, key in enumerate(keys)]
        translator.model.may_step.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(run()) == ["FIRST", "0", "1", "2", "3", "4", "5"]
    assert translator.batches == [["first"], ["0", "2"], ["1", "5"], ["3"], ["4"]]


def test_a_batch_has_a_largest_size(translator, make_pool):
    async def run():
        pool = make_pool(window=0.2, limit=1000)
        jobs = [pool.submit(shout, "x", texts=4, key=1) for _ in range(5)]
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert [len(batch) for batch in translator.batches] == [2, 2, 1]


def test_cancelled_jobs_are_dropped_before_their_batch(translator, make_pool):
    async def run():
        pool = make_pool()
        translator.model.may_step.clear()
        first = pool.submit(shout, "first", key=1)
        await settle(lambda: translator.batches)
        gone, stays = pool.submit(shout, "gone", key=2), pool.submit(shout, "stays", key=2)
        gone.cancel()
        translator.model.may_step.set()
        await asyncio.gather(first, stays)

    asyncio.run(run())
    assert translator.batches == [["first"], ["stays"]]


def test_a_batch_that_nobody_waits_for_is_given_up(translator, make_pool):
    def count(translator, inputs):
        for _ in range(1000):
            time.sleep(0.001)
            translator.model.step()
            WATCH.get()(None, {})  # as a search does
        return inputs

    async def run():
        pool = make_pool(window=0.05)
        jobs = [pool.submit(count, i, key=1) for i in range(2)]
        await settle(lambda: translator.model.steps)
        jobs[0].cancel()
        steps = translator.model.steps
        await settle(lambda: translator.model.steps > steps + 5)  # one still waits
        jobs[1].cancel()
        assert await pool.submit(shout, "next") == "NEXT"
        assert translator.model.steps < 900

    asyncio.run(run())


def test_an_error_is_the_answer_of_its_own_job(translator, make_pool):
    async def run():
        pool = make_pool(window=0.1)
        jobs = [pool.submit(shout, text, key=1) for text in ("a", "bad", "b")]
        return await asyncio.gather(*jobs, return_exceptions=True)

    a, bad, b = asyncio.run(run())
    assert (a, b, type(bad)) == ("A", "B", ValueError)


def test_a_worker_survives_a_failure(translator, make_pool):
    def fail(translator, inputs):
        raise ZeroDivisionError

    async def run():
        pool = make_pool()
        with pytest.raises(ZeroDivisionError):
            await pool.submit(fail, "x")
        return await pool.submit(shout, "y")

    assert asyncio.run(run()) == "Y"


def test_a_full_queue_says_when_to_try_again(translator, make_pool):
    async def run():
        pool = make_pool(limit=3)
        translator.model.may_step.clear()
        jobs = [pool.submit(shout, "first", key=1)]
        await settle(lambda: translator.batches)
        jobs += [pool.submit(shout, "x", texts=2, key=1)]
        with pytest.raises(RequestError, match="2 texts are waiting, and 3 may") as raised:
            pool.submit(shout, "y", texts=2, key=1)
        assert (raised.value.status, raised.value.headers) == (503, {"Retry-After": "1"})
        jobs[1].cancel()  # what nobody waits for takes no place
        jobs[1] = pool.submit(shout, "y", texts=2, key=1)
        translator.model.may_step.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())


def test_closing_finishes_what_waits(translator, make_pool):
    async def run():
        pool = make_pool()
        translator.model.may_step.clear()
        jobs = [pool.submit(shout, text) for text in "abc"]
        await settle(lambda: translator.batches)
        closing = asyncio.create_task(asyncio.to_thread(pool.close, 5))
        await settle(lambda: pool.queue.is_closed)
        with pytest.raises(RequestError, match="stopping"):
            pool.submit(shout, "d")
        translator.model.may_step.set()
        await closing
        return await asyncio.gather(*jobs)

    assert asyncio.run(run()) == ["A", "B", "C"]


def test_copies_work_at_the_same_time():
    barrier = threading.Barrier(2)

    def meet(translator, inputs):
        barrier.wait(5)
        return [translator.name] * len(inputs)

    async def run():
        copies = [SimpleNamespace(model=Model(), name=name) for name in "ab"]
        pool = Pool(copies, 10, 0.0, 8)  # type: ignore[arg-type]
        names = await asyncio.gather(pool.submit(meet, 1), pool.submit(meet, 2))
        pool.close(5)
        return names

    assert sorted(asyncio.run(run())) == ["a", "b"]
