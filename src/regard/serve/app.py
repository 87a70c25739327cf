"""The endpoints: JSON in, JSON out. `answers` has what they compute, `batching` when and with what else."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from regard import __version__
from regard.errors import UserError
from regard.page import build
from regard.page import schema as page
from regard.serve import answers, schema
from regard.serve.batching import Job
from regard.serve.catalogue import Catalogue, ServedRun, find
from regard.serve.guard import Guard
from regard.serve.lab_process import LabProcess
from regard.serve.settings import RequestError, Settings
from regard.serve.telemetry import Telemetry

GONE = 499  # as in the logs of nginx: the client did not wait
STATUSES = {
    401: "The token is missing or wrong.",
    403: "The request comes from a web page of another origin.",
    404: "There is no model, lab or comparison of that name.",
    408: "It took too long.",
    409: "The run has no weights yet.",
    413: "The body is too large.",
    421: "The server does not go by that name.",
    422: "Something in the request is not allowed.",
    503: "Too many requests are waiting; `Retry-After` says how many seconds to wait.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Error, "description": text} for status, text in STATUSES.items()
}
EVENTS = {
    "description": "Server-sent events: `token` (a `StreamedToken`) for each token, then `translation` (a "
    "`Translation`), or `error` (an `Error`).",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


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


def create_app(settings: Settings) -> Guard:
    """The ASGI app of a server; loads its models."""
    telemetry = Telemetry()

    def observe(batch: list[Job], seconds: float) -> None:
        telemetry.observe_batch(sum(job.texts for job in batch), seconds)

    catalogue = Catalogue.open(settings, observe)
    server = Server(settings, catalogue, telemetry, LabProcess(settings.limits.seconds))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        catalogue.start()
        yield
        server.is_stopping = True
        await asyncio.to_thread(catalogue.stop, settings.limits.seconds)
        server.labs.stop()

    app = FastAPI(
        title="Regard",
        version=__version__,
        description="Translate, score, explain and change attention-based sequence-to-sequence models.",
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    app.include_router(router)
    app.include_router(api)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, settings, telemetry)  # type: ignore[arg-type]


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


# --- models ---------------------------------------------------------------------------------------

router, api = APIRouter(), APIRouter(prefix="/api", responses=ERRORS)


@api.get("/models", summary="List the models", response_model=page.Models)
async def list_models(request: Request) -> Any:
    """Those that can be asked now; a run in training is one of them once it has weights."""
    runs = get_server(request).catalogue.runs.values()
    return to_json(page.Models(models=tuple(run.info for run in runs if run.info)))


@api.post("/translate", summary="Translate texts", response_model=list[page.Translation])
async def translate(request: Request, given: schema.TranslateTexts) -> Any:
    """As `regard translate --json`. Requests of other clients share the batch, and change nothing."""
    server = get_server(request)
    outputs = await translate_texts(request, server, given, given.texts)
    return await asyncio.to_thread(to_json, outputs, page.Translation.of)


async def translate_texts(
    request: Request,
    server: Server,
    given: schema.TranslateTexts | schema.InterveneText,
    texts: Sequence[str],
    interventions: Sequence[Any] | None = None,
) -> Any:
    run, limits = server.catalogue.find_model(given.model), server.settings.limits
    limits.check_texts(texts)
    limits.check_decoding(given.decoding.beam, given.decoding.nbest)
    changes = given.interventions if interventions is None else interventions
    decoding = answers.to_decoding(given.decoding, given.attention, changes)
    request.state.log["beam"] = given.decoding.beam
    job = answers.Texts(texts, decoding)
    return await server.ask(
        request, run, answers.translate, job, texts, answers.batch_key(decoding)
    )


@api.post(
    "/intervene", summary="Translate with and without changes", response_model=schema.Intervened
)
async def intervene(request: Request, given: schema.InterveneText) -> Any:
    """Force a token, mask keys, set weights or ablate heads: what changes?"""
    server = get_server(request)
    [before] = await translate_texts(request, server, given, [given.text], ())
    [after] = await translate_texts(request, server, given, [given.text])
    return await asyncio.to_thread(to_json, (before, after), schema.Intervened.of)


@api.post("/score", summary="Score given translations", response_model=list[schema.Scored])
async def score(request: Request, given: schema.Pairs) -> Any:
    """The log-probability of each token of each target, as `regard score`."""
    pairs = await ask_pairs(request, answers.score, given, given.attention)
    return await asyncio.to_thread(to_json, pairs, schema.Scored.of)


@api.post(
    "/explain", summary="Attention of given translations", response_model=list[page.Translation]
)
async def explain(request: Request, given: schema.Pairs) -> Any:
    """Score and attention weights of a given target, as if the model had produced it."""
    outputs = await ask_pairs(request, answers.explain, given, True)
    return await asyncio.to_thread(to_json, outputs, page.Translation.of)


async def ask_pairs(
    request: Request, work: Callable[..., Any], given: schema.Pairs, attention: bool
) -> Any:
    server = get_server(request)
    run, limits = server.catalogue.find_model(given.model), server.settings.limits
    sources = [source for source, _ in given.pairs]
    limits.check_texts(sources)
    limits.check_texts([target for _, target in given.pairs])
    job = answers.ScorePairs(given.pairs, attention, given.interventions)
    return await server.ask(request, run, work, job, sources, (attention, given.interventions))


@api.post("/page", summary="The page's own requests", response_model=page.Models | page.Translation)
async def answer_page(request: Request, given: Annotated[page.Request, Body()]) -> Any:
    """What the page asks its engine, here or in the browser: see `regard.page.schema`."""
    server = get_server(request)
    if isinstance(given, page.ModelsRequest):
        return await list_models(request)
    run, limits = server.catalogue.find_model(given.model), server.settings.limits
    target = [given.target] if isinstance(given, page.ExplainRequest) else []
    limits.check_texts([given.text, *target])
    if isinstance(given, page.TranslateRequest):
        limits.check_decoding(given.decoding.beam, given.decoding.nbest)
        answers.to_decoding(given.decoding, True, given.interventions)
    answer = await server.ask(request, run, answers.answer_page, given, [given.text])
    return await asyncio.to_thread(to_json, answer)


# --- token by token -------------------------------------------------------------------------------


@api.post(
    "/stream",
    summary="Translate, token by token",
    responses={200: EVENTS},
    response_class=StreamingResponse,
)
async def stream(request: Request, given: schema.StreamText) -> Any:
    """Greedy search, as server-sent events. Streams of several clients share a batch."""
    server = get_server(request)
    run = server.catalogue.find_model(given.model)
    server.settings.limits.check_texts([given.text])
    server.note(request, model=run.name, texts=1, text=[given.text])
    assert run.pool is not None
    tokens: asyncio.Queue[int | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    job = answers.Streamed(given.text, lambda t: loop.call_soon_threadsafe(tokens.put_nowait, t))
    future = run.pool.submit(answers.stream, job, 1, "stream")
    future.add_done_callback(lambda _: tokens.put_nowait(None))
    first = asyncio.ensure_future(tokens.get())
    try:
        token = await server.wait(request, first)
    except BaseException:
        future.cancel()
        raise
    if token is None:
        future.result()  # an error before the first token has its own status
    events = stream_events(server, future, token, tokens, run.pool.translator.tokenizers.target)
    return StreamingResponse(events, media_type="text/event-stream")


async def stream_events(
    server: Server,
    future: "asyncio.Future[Any]",
    token: int | None,
    tokens: "asyncio.Queue[int | None]",
    tokenizer: Any,
) -> AsyncIterator[str]:
    ids: list[int] = []
    try:
        async with asyncio.timeout(server.settings.limits.seconds):
            while token is not None:
                ids.append(token)
                [name] = tokenizer.ids_to_tokens([token])
                streamed = schema.StreamedToken(token=name, text=tokenizer.decode(ids))
                yield format_event("token", streamed)
                token = await tokens.get()
        yield format_event("translation", page.Translation.of(future.result()))
    except (TimeoutError, UserError) as error:
        message = str(error) or "the rest took too long"
        code = "too-slow" if isinstance(error, TimeoutError) else "invalid"
        yield format_event("error", schema.Error(error=message, code=code))
    finally:
        if not future.done():
            server.telemetry.dropped.add()
        future.cancel()


def format_event(name: str, data: BaseModel) -> str:
    return f"event: {name}\ndata: {data.model_dump_json(exclude_unset=True)}\n\n"


# --- training, comparisons, labs ------------------------------------------------------------------


@api.get("/runs", summary="List the runs", response_model=list[schema.RunState])
async def list_runs(request: Request) -> Any:
    """Those named when the server was started, with the state of their training."""
    runs = get_server(request).catalogue.runs.values()
    return to_json([schema.RunState(**run.state()) for run in runs])


@api.get("/runs/{name}", summary="Training log of a run", response_model=schema.TrainingLog)
async def read_run(
    request: Request, name: str, after: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> Any:
    """Its events after the first `after`, and translations along its training. Ask again to follow it."""
    run = get_server(request).catalogue.find_run(name)
    return to_json(await asyncio.to_thread(run.log, after))


@api.get("/comparisons", summary="List the comparisons", response_model=schema.ComparisonList)
async def list_comparisons(request: Request) -> Any:
    """Folders of `regard compare` that were named when the server was started."""
    names = get_server(request).catalogue.comparisons
    return to_json(schema.ComparisonList(comparisons=tuple(names)))


@api.get("/comparisons/{name}", summary="A comparison", response_model=schema.Comparison)
async def read_comparison(request: Request, name: str) -> Any:
    """Its tables, and the learning curves of its runs, finished or not."""
    catalogue = get_server(request).catalogue
    return to_json(await asyncio.to_thread(catalogue.read_comparison, name))


@api.get("/labs", summary="List the labs", response_model=schema.LabList)
async def list_labs() -> Any:
    """Claims about attention, with their parameters."""
    return to_json(await asyncio.to_thread(describe_labs))


@cache
def describe_labs() -> schema.LabList:
    from regard.diagrams.themes import THEMES
    from regard.labs import LABS  # matplotlib takes a while to import
    from regard.page.plots import palette

    labs = [
        schema.LabInfo(
            name=lab.name,
            claim=lab.claim,
            derivation=lab.derivation.strip(),
            parameters=lab.parameters.model_json_schema().get("properties", {}),
            quick=lab.quick,
            absent=lab.absent,
        )
        for lab in LABS.values()
    ]
    palettes = {name: tuple(palette(theme)) for name, theme in THEMES.items()}
    return schema.LabList(labs=tuple(labs), palettes=palettes)


@api.post("/labs/{name}", summary="Run a lab", response_model=schema.LabResult)
async def run_lab(request: Request, name: str, given: schema.RunLab) -> Any:
    """Measure the claim at any parameters."""
    server = get_server(request)
    labs = {lab.name: lab for lab in (await asyncio.to_thread(describe_labs)).labs}
    find(labs, name, "lab")
    request.state.log["lab"] = name
    return to_json(await server.labs.run(name, given.seed, given.parameters))


# --- the page, and operators ----------------------------------------------------------------------


@router.get("/", include_in_schema=False)
async def index() -> HTMLResponse:
    """The page: its code alone, which then asks `/api`."""
    html, policy = render_page()
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


@cache
def render_page() -> tuple[str, str]:
    """(HTML, its content-security policy)"""
    html = build.render([], title="Regard", server={"api": "/api"})
    return html, f"{build.read_policy(html)}; frame-ancestors 'none'"


@router.get("/healthz", summary="Is the server up?", response_model=schema.Health)
async def check_health(request: Request) -> Any:
    """For load balancers; needs no token."""
    return schema.Health(status="stopping" if get_server(request).is_stopping else "ok")


@router.get("/metrics", summary="Metrics", response_class=PlainTextResponse)
async def read_metrics(request: Request) -> PlainTextResponse:
    """In the text format of Prometheus."""
    server = get_server(request)
    runs = server.catalogue.runs.values()
    queues = [((("model", run.name),), run.pool.queue.waiting) for run in runs if run.pool]
    gauges = {"regard_queue_texts": ("Texts that wait.", queues)}
    text = server.telemetry.render(gauges)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


# --- errors ---------------------------------------------------------------------------------------


def error_response(
    status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> Response:
    body = json.dumps({"error": message, "code": code})  # ASCII: a name may hold half a character
    return Response(body, status, headers, "application/json")


async def on_request_error(_: Request, error: Any) -> Response:
    return error_response(error.status, error.code, error.message, error.headers)


async def on_user_error(_: Request, error: Any) -> Response:
    return error_response(422, "invalid", str(error))


async def on_invalid(_: Request, error: Any) -> Response:
    mistakes = [describe_mistake(one) for one in error.errors()[:3]]
    return error_response(422, "invalid", "; ".join(mistakes))


def describe_mistake(detail: dict[str, Any]) -> str:
    """'decoding.beam: Input should be greater than or equal to 1'"""
    path = ".".join(
        str(part) for part in detail["loc"][1:] if not str(part).startswith("function-")
    )
    return f"{path or 'the request'}: {detail['msg']}"


async def on_http_error(_: Request, error: Any) -> Response:
    codes = {404: "not-found", 405: "not-allowed"}
    return error_response(
        error.status_code, codes.get(error.status_code, "invalid"), str(error.detail), error.headers
    )


HANDLERS: dict[Any, Any] = {
    RequestError: on_request_error,
    UserError: on_user_error,
    RequestValidationError: on_invalid,
    HTTPException: on_http_error,
}
