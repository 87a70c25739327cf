"""A uvicorn server that stops gracefully: at a signal it finishes what it has begun."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from regard.errors import UserError
from regard.serve.app import create_app
from regard.serve.settings import Settings
from regard.serve.telemetry import log, log_to_stderr
from regard.signals import Stopped, replace_handlers, restore_handlers, write_message

KEEP_ALIVE = 15  # seconds that an idle connection stays open


class HttpServer(uvicorn.Server):
    """uvicorn's, without its exit by the signal that stopped it: a finished stop is a success."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at Ctrl-C, SIGTERM and SIGHUP; at a second Ctrl-C, at once."""
        former = replace_handlers(self.handle_exit)
        try:
            yield
        finally:
            restore_handlers(former)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would cancel the application, which logs a traceback.
        is_second = self.should_exit and sig == signal.SIGINT
        write_message(sig, f"regard: {Stopped(sig)}\n" if is_second else "")
        if is_second:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)


def create_server(settings: Settings) -> HttpServer:
    """A server whose models are loaded."""
    config = uvicorn.Config(
        create_app(settings),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.limits.seconds) + 1,
    )
    return HttpServer(config)


def listen(host: str, port: int) -> socket.socket:
    """A socket on this address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}, port {port}: {reason}") from None
    return listener


def serve(settings: Settings, on_start: Callable[[str], Any] = lambda address: None) -> None:
    """Serve until a signal; `on_start` gets the address."""
    with listen(settings.host, settings.port) as listener:
        server = create_server(settings)
        log_to_stderr()
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        on_start(f"http://{host}:{port}/")
        log("start", host=settings.host, port=port, models=[str(run) for run in settings.runs])
        server.run(sockets=[listener])
        log("stop")
