"""The endpoints of the API. `answers` has what they compute, `batching` when and with what else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from regard.errors import UserError
from regard.page import schema as page
from regard.serve import answers, schema
from regard.serve.catalogue import find
from regard.serve.service import Server, get_server, to_json

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

# --- models ---------------------------------------------------------------------------------------

api = APIRouter(prefix="/api", responses=ERRORS)


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
