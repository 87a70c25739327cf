"""Who may ask, and how much: an ASGI layer around the app.

A web page of someone else must not reach a server on loopback. Its `Origin` is another; or its `Host` is a
name that it has bound to 127.0.0.1 (DNS rebinding), so names must be known, while addresses cannot be bound.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from regard import documents
from regard.serve.settings import RequestError, Settings
from regard.serve.telemetry import Telemetry, log, logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = (
    "/",
    "/healthz",
)  # need no token: the page has no model inside, and asks for the token
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """Checks each request before the app sees it; adds headers, metrics and a line of the log."""

    def __init__(self, app: App, settings: Settings, telemetry: Telemetry) -> None:
        self.app, self.settings, self.telemetry = app, settings, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; other events, such as the start of the server, are the app's."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        scope["state"] = scope.get("state", {}) | {"log": {}}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message.get("headers", [])}
                added = [
                    (k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given
                ]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        try:
            try:
                self.check(scope)
                receive = await self.read_body(scope, receive)
                await self.app(scope, receive, send_with_headers)
            except RequestError as error:
                await send_error(error, send_with_headers)
            except Exception:
                logger.exception("failed")
                if status:
                    raise  # the answer has begun: the connection is cut
                message = "the server failed at this request: its log says why"
                await send_error(RequestError(500, "failed", message), send_with_headers)
        finally:
            self.record(scope, status, time.monotonic() - started)

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """A client that has gone got no answer: 499, as in the logs of nginx."""
        route = getattr(scope.get("route"), "path", "other")
        status, method = status or 499, scope["method"]
        method = method if method in METHODS else "OTHER"
        self.telemetry.requests.add(path=route, method=method, status=str(status))
        self.telemetry.seconds.observe(seconds, path=route)
        # The path as it was matched: what else a client wrote there is its text.
        log(
            "request",
            method=method,
            path=route,
            status=status,
            milliseconds=round(1000 * seconds, 1),
            **scope["state"]["log"],
        )

    def check(self, scope: Scope) -> None:
        """Raise an error for a request that may not be answered."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if not self.is_allowed_host(host):
            raise RequestError(
                421,
                "unknown-host",
                "this server does not go by that name: add it with --allow-host, or use its address",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RequestError(
                403, "foreign-origin", "web pages of other origins may not ask this server"
            )
        self.check_token(scope["path"], headers.get("authorization", ""))

    def is_allowed_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ip_address(name)
        except ValueError:
            return name in {
                "localhost",
                self.settings.host.lower(),
                *map(str.lower, self.settings.hosts),
            }
        return True

    def check_token(self, path: str, authorization: str) -> None:
        token = self.settings.token
        if token is None or path in OPEN_PATHS:
            return
        scheme, _, given = authorization.partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
        if scheme.lower() != "bearer" or not is_right:
            message = "this server needs its token, as in the header Authorization: Bearer TOKEN"
            raise RequestError(401, "no-token", message, {"WWW-Authenticate": "Bearer"})

    async def read_body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body at once, if it is small enough and comes soon enough."""
        limits = self.settings.limits
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limits.body:
            raise body_too_large(limits.body)
        body = b""
        try:
            async with asyncio.timeout(limits.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limits.body:
                        raise body_too_large(limits.body)
        except TimeoutError:
            message = f"the request took more than {limits.seconds:g} seconds to arrive"
            raise RequestError(408, "too-slow", message) from None
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay


def body_too_large(limit: int) -> RequestError:
    message = f"the body of a request may have at most {limit:,} bytes: split it"
    return RequestError(413, "body-too-large", message, {"Connection": "close"})


async def send_error(error: RequestError, send: Send) -> None:
    """The same shape for every error: see `schema.Error`."""
    body = documents.dumps(
        {"error": error.message, "code": error.code}, ensure_ascii=False
    ).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **error.headers,
    }
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
