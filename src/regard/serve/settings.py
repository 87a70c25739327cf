"""Settings of a server, and the errors that its limits answer with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from regard.errors import UserError

MIN_TOKEN = 8  # characters


class RequestError(Exception):
    """A request that is not answered: an HTTP status, a code for programs, and a sentence."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for, and how many may wait."""

    characters: int = 5000
    """Of one text."""
    texts: int = 64
    """Of one request."""
    beam: int = 32
    nbest: int = 32
    body: int = 1 << 20
    """Bytes of a request."""
    seconds: float = 30.0
    """Until a request is answered or given up."""
    queue: int = 256
    """Texts that wait."""

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise an error for too many texts, or for one that is too long or no text."""
        if len(texts) > self.texts:
            raise too_large(
                "too-many-texts", f"the request has {len(texts)} texts", self.texts, "split it"
            )
        for number, text in enumerate(texts, start=1):
            if len(text) > self.characters:
                given = f"text {number} has {len(text):,} characters"
                raise too_large("text-too-long", given, self.characters, "shorten or split it")
            if any("\ud800" <= character <= "\udfff" for character in text):
                message = (
                    f"text {number} has half a character (a lone surrogate): send valid Unicode"
                )
                raise RequestError(422, "invalid", message)

    def check_decoding(self, beam: int, nbest: int) -> None:
        """Raise an error for a search that is too wide."""
        for name, value, limit in (("beam", beam, self.beam), ("nbest", nbest, self.nbest)):
            if value > limit:
                raise too_large(f"{name}-too-large", f"{name} is {value}", limit, "lower it")


def too_large(code: str, given: str, limit: int, advice: str) -> RequestError:
    message = f"{given}, and this server allows at most {limit:,}: {advice}"
    return RequestError(422, code, message)


@dataclass(frozen=True)
class Settings:
    """All choices of `regard serve`."""

    runs: tuple[Path, ...]
    comparisons: tuple[Path, ...] = ()
    device: str = "cpu"
    int8: bool = False
    bfloat16: bool = False
    engine: str = "pytorch"
    workers: int = 1
    """Copies of each model, each with a thread of its own."""
    window: float = 0.003
    """Seconds that a request waits for others to share its batch."""
    max_batch: int = 64
    """Texts of a batch; a request with more is a batch of its own."""
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    """Names by which clients may call the server, besides addresses and localhost."""
    log_text: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.token is not None and (
            len(self.token) < MIN_TOKEN or not self.token.isascii() or not self.token.isprintable()
        ):
            raise UserError(
                f"a token has {MIN_TOKEN} or more printable ASCII characters: choose a longer one, such as "
                "the output of `openssl rand -hex 16`"
            )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach a server on this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(host: str, token: str | None, without_token: bool) -> None:
    """Raise an error for a server that everyone can reach, unless that is wanted."""
    if token and without_token:
        raise UserError("give --token or --no-token, not both")
    if token is None and not without_token and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines in: give --token or set REGARD_TOKEN, so that only clients "
            "with that token are answered, or --no-token to answer everyone"
        )
