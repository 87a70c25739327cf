"""What the endpoints share: a job's result for a client that may go, and JSON."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from regard.serve.catalogue import Catalogue, ServedRun
from regard.serve.lab_process import LabProcess
from regard.serve.settings import RequestError, Settings
from regard.serve.telemetry import Telemetry

GONE = 499  # as in the logs of nginx: the client did not wait


@dataclass
class Server:
    """What the endpoints share."""

    settings: Settings
    catalogue: Catalogue
    telemetry: Telemetry
    labs: LabProcess
    is_stopping: bool = False

    async def ask(
        self,
        request: Request,
        run: ServedRun,
        work: Callable[..., Any],
        given: Any,
        texts: Sequence[str],
        key: Any = None,
    ) -> Any:
        """The result of a job; its texts were checked."""
        self.note(request, model=run.name, texts=len(texts), text=list(texts))
        assert run.pool is not None
        return await self.wait(request, run.pool.submit(work, given, len(texts), key))

    async def wait(self, request: Request, future: "asyncio.Future[Any]") -> Any:
        """The result, unless the client goes or the time is over: then the job is dropped."""
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        seconds = self.settings.limits.seconds
        try:
            await asyncio.wait({future, gone}, timeout=seconds, return_when="FIRST_COMPLETED")
            if future.done():
                return future.result()
            if gone.done():
                self.telemetry.dropped.add()
                raise RequestError(GONE, "gone", "the client did not wait for the answer")
            message = f"there was no answer within {seconds:g} seconds: send less, or try again"
            raise RequestError(408, "too-slow", message)
        finally:
            future.cancel()
            gone.cancel()

    def note(self, request: Request, text: Sequence[str], **fields: Any) -> None:
        """Fields for the log; texts of users only if asked."""
        request.state.log.update(fields)
        if self.settings.log_text:
            request.state.log["text"] = list(text)


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def get_server(request: Request) -> Server:
    return request.app.state.server


def to_json(answer: Any, convert: Callable[[Any], BaseModel] = lambda one: one) -> Response:
    """JSON without fields that are not there; of a list, each converted.

    Not validated again: attention weights are many numbers.
    """
    if isinstance(answer, list):
        body = f"[{','.join(convert(one).model_dump_json(exclude_unset=True) for one in answer)}]"
    else:
        body = convert(answer).model_dump_json(exclude_unset=True)
    return Response(body, media_type="application/json")
