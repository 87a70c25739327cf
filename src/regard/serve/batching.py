"""Requests of many clients, in batches: a bounded queue, and a thread for each copy of a model.

A worker takes the oldest job and those behind it that can share its batch, having waited a few milliseconds
for more. Nothing else touches its model, so interventions, which patch it, need no lock. A job whose client
has gone, or has waited too long, is dropped; a batch that nobody waits for any more is given up between two
steps.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.api import Translator
from regard.search import watch
from regard.serve.settings import RequestError

Work = Callable[[Translator, Sequence[Any]], Sequence[Any]]
"""(translator, inputs of jobs) -> a result, or an exception, for each"""


class GivenUpError(Exception):
    """Nobody waits for this batch any more."""


@dataclass(eq=False)
class Job:
    """An input for `work`, and the future of its result. Jobs with equal keys may share a call."""

    work: Work
    input: Any
    texts: int
    key: Any
    """None: alone."""
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    started: float = field(default_factory=time.monotonic)

    @property
    def is_wanted(self) -> bool:
        return not self.future.done()

    def can_join(self, other: "Job") -> bool:
        return self.key is not None and self.work == other.work and self.key == other.key

    def finish(self, result: Any) -> None:
        """Give the result to the client, from any thread."""
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self._finish, result)

    def _finish(self, result: Any) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class JobQueue:
    """Jobs in the order of their arrival, at most `limit` texts."""

    def __init__(self, limit: int, window: float, max_batch: int) -> None:
        self.limit, self.window, self.max_batch = limit, window, max_batch
        self.jobs: deque[Job] = deque()
        self.changed = threading.Condition()
        self.is_closed = False

    @property
    def waiting(self) -> int:
        """Texts that wait."""
        return sum(job.texts for job in list(self.jobs))

    def put(self, job: Job) -> None:
        """Add a job; an error if the queue is full or the server is stopping."""
        with self.changed:
            if self.is_closed:
                raise RequestError(
                    503, "stopping", "the server is stopping: try again", {"Retry-After": "5"}
                )
            self.jobs = deque(one for one in self.jobs if one.is_wanted)
            if self.jobs and self.waiting + job.texts > self.limit:
                message = f"{self.waiting} texts are waiting, and {self.limit} may: try again"
                raise RequestError(503, "queue-full", message, {"Retry-After": "1"})
            self.jobs.append(job)
            self.changed.notify_all()

    def take(self) -> list[Job]:
        """The oldest job, and those that can join it; nothing once the queue is closed and empty."""
        with self.changed:
            while True:
                while not self.jobs and not self.is_closed:
                    self.changed.wait()
                if not self.jobs:
                    return []
                self.wait_for_more()
                if batch := self.remove_batch():
                    return batch

    def wait_for_more(self) -> None:
        """Until the oldest job has waited for a window, or a batch is full."""
        until = self.jobs[0].started + self.window
        while self.jobs and not self.is_closed and self.waiting < self.max_batch:
            remaining = until - time.monotonic()
            if remaining <= 0:
                break
            self.changed.wait(remaining)

    def remove_batch(self) -> list[Job]:
        jobs = [job for job in self.jobs if job.is_wanted]
        batch, size = jobs[:1], jobs[0].texts if jobs else 0
        for job in jobs[1:]:
            if job.can_join(batch[0]) and size + job.texts <= self.max_batch:
                batch.append(job)
                size += job.texts
        chosen = set(map(id, batch))
        self.jobs = deque(job for job in jobs if id(job) not in chosen)
        return batch

    def close(self) -> None:
        """Take no more jobs; those that wait are still done."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class Worker(threading.Thread):
    """One copy of a model, and the only thread that uses it."""

    def __init__(
        self,
        queue: JobQueue,
        translator: Translator,
        threads: int,
        observe: Callable[[list[Job], float], None] = lambda batch, seconds: None,
    ) -> None:
        super().__init__(name="regard-worker", daemon=True)
        self.queue, self.translator, self.threads, self.observe = (
            queue,
            translator,
            threads,
            observe,
        )

    def run(self) -> None:
        torch.set_num_threads(self.threads)  # OpenMP counts them for each calling thread
        while batch := self.queue.take():
            started = time.monotonic()
            for job, result in zip(batch, self.compute(batch), strict=True):
                job.finish(result)
            self.observe(batch, time.monotonic() - started)

    def compute(self, batch: list[Job]) -> Sequence[Any]:
        """A result for each job; an exception is the result of all."""
        translator = self.translator  # another may replace it meanwhile
        try:
            with watch(lambda search, live: give_up_unless(any(job.is_wanted for job in batch))):
                return batch[0].work(translator, [job.input for job in batch])
        except Exception as error:
            return [error] * len(batch)


def give_up_unless(is_wanted: bool) -> None:
    """Raise an error, during a search that nobody waits for any more."""
    if not is_wanted:
        raise GivenUpError


class Pool:
    """The workers of a model, and their queue."""

    def __init__(
        self,
        translators: Sequence[Translator],
        limit: int,
        window: float,
        max_batch: int,
        observe: Callable[[list[Job], float], None] = lambda batch, seconds: None,
    ) -> None:
        self.queue = JobQueue(limit, window, max_batch)
        threads = max(1, torch.get_num_threads() // len(translators))
        self.workers = [Worker(self.queue, one, threads, observe) for one in translators]
        for worker in self.workers:
            worker.start()

    @property
    def translator(self) -> Translator:
        """The first copy: to look at, not to compute with."""
        return self.workers[0].translator

    def replace(self, translators: Sequence[Translator]) -> None:
        """Other weights, from the next batch on."""
        for worker, translator in zip(self.workers, translators, strict=True):
            worker.translator = translator

    def submit(
        self, work: Work, given: Any, texts: int = 1, key: Any = None
    ) -> "asyncio.Future[Any]":
        """Put a job into the queue; call it in an event loop, and cancel the future to drop the job."""
        loop = asyncio.get_running_loop()
        job = Job(work, given, texts, key, loop.create_future(), loop)
        self.queue.put(job)
        return job.future

    def close(self, seconds: float) -> None:
        """Finish what has begun, for at most so long."""
        self.queue.close()
        until = time.monotonic() + seconds
        for worker in self.workers:
            worker.join(max(0.0, until - time.monotonic()))
