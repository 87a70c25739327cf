"""`regard serve`: models, labs and comparisons behind HTTP."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from regard import shipped
from regard.cli.common import Bfloat16, Device, Engine, Int8, OptionalRuns, app, err
from regard.config import limits
from regard.devices import limit_kernel_caches, resolve_device
from regard.errors import UserError

PACKAGES = ("fastapi", "uvicorn")


@app.command()
def serve(
    runs: OptionalRuns = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Also serve the tables and curves of this folder of `regard compare`. May be repeated.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="Answer only clients with this token, else that of REGARD_TOKEN.",
            show_default=False,
        ),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Answer other machines without a token.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which clients call this server, such as that of a proxy. May be repeated.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=limits.PROCESSES, help="Copies of each model.")
    ] = 1,
    window: Annotated[
        float,
        typer.Option(
            min=0,
            max=60_000,
            help="Milliseconds that a request waits for others.",
        ),
    ] = 3.0,
    max_batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="Texts of a batch; 1: one request at a time.")
    ] = 64,
    max_characters: Annotated[
        int, typer.Option(min=1, max=limits.CHARACTERS, help="Limit of a text.")
    ] = 5000,
    max_texts: Annotated[int, typer.Option(min=1, max=100_000, help="Limit of a request.")] = 64,
    max_beam: Annotated[int, typer.Option(min=1, max=32, help="Limit of beam and nbest.")] = 32,
    max_body: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Limit of a request, in bytes.")
    ] = 1 << 20,
    max_queue: Annotated[
        int, typer.Option(min=1, max=10**6, help="Limit of texts that wait.")
    ] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=limits.SECONDS, help="Limit of time, in seconds.")
    ] = 30.0,
    log_text: Annotated[bool, typer.Option("--log-text", help="Also log the texts.")] = False,
    device: Device = "auto",
    int8: Int8 = False,
    bfloat16: Bfloat16 = False,
    engine: Engine = "pytorch",
) -> None:
    """Serve the page and an API for runs, trained or in training; without a run, the shipped models.

    The API is described at /api/openapi.json. Stops at Ctrl-C or SIGTERM, once it has answered what it began.
    """
    require_packages()
    limit_kernel_caches()

    from regard.serve.settings import Limits, Settings, check_token

    token = token or os.environ.get("REGARD_TOKEN") or None
    check_token(host, token, no_token)
    for_cpu = int8 or engine != "pytorch"
    allowed = Limits(max_characters, max_texts, max_beam, max_beam, max_body, timeout, max_queue)
    settings = Settings(
        runs=tuple(runs or map(Path, shipped.names())),
        comparisons=tuple(compare or ()),
        device="cpu" if for_cpu and device == "auto" else resolve_device(device),
        int8=int8,
        bfloat16=bfloat16,
        engine=engine,
        workers=workers,
        window=window / 1000,
        max_batch=max_batch,
        host=host,
        port=port,
        token=token,
        hosts=tuple(allow_host or ()),
        log_text=log_text,
        limits=allowed,
    )

    from regard.serve.server import serve

    def announce(address: str) -> None:
        err.print(f"Regard is at {address} (Ctrl-C stops it)")

    serve(settings, announce)


def require_packages() -> None:
    """Raise an error that names the missing packages and the command that installs them."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f'regard serve needs {" and ".join(missing)}: pip install "regard[serve]"')
