"""The app: endpoints, the page, health and metrics, one shape for all errors, and the guard around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from regard import __version__, documents
from regard.errors import UserError
from regard.page import build
from regard.serve import schema
from regard.serve.batching import Job
from regard.serve.catalogue import Catalogue
from regard.serve.endpoints import api
from regard.serve.guard import Guard
from regard.serve.lab_process import LabProcess
from regard.serve.service import Server, get_server
from regard.serve.settings import RequestError, Settings
from regard.serve.telemetry import Telemetry

router = APIRouter()


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
    # ASCII: a name may hold half a character.
    body = documents.dumps({"error": message, "code": code})
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
