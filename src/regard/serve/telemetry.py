"""What operators see: `/metrics` in Prometheus' text format, and a line of JSON for each request.

Neither has the text of a user, unless `--log-text` asks for it.
"""

import logging
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard import documents

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64)
Labels = tuple[tuple[str, str], ...]

logger = logging.getLogger("regard.serve")


class Counter:
    """A number that only grows, for each value of its labels."""

    kind = "counter"

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self.values: dict[Labels, float] = defaultdict(float)
        self.lock = threading.Lock()

    def add(self, amount: float = 1, **labels: str) -> None:
        with self.lock:
            self.values[tuple(labels.items())] += amount

    def samples(self) -> Iterator[str]:
        with self.lock:
            values = list(self.values.items())
        for labels, value in values:
            yield format_sample(self.name, labels, value)


class Histogram:
    """How many observations were at most each bound, for each value of its labels."""

    kind = "histogram"

    def __init__(self, name: str, description: str, bounds: tuple[float, ...]) -> None:
        self.name, self.description, self.bounds = name, description, bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = defaultdict(float)
        self.lock = threading.Lock()

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        with self.lock:
            counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self.sums[key] += value

    def samples(self) -> Iterator[str]:
        with self.lock:
            counted = [
                (labels, list(counts), self.sums[labels]) for labels, counts in self.counts.items()
            ]
        for labels, counts, total in counted:
            below = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                below += count
                le = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield format_sample(f"{self.name}_bucket", (*labels, ("le", le)), below)
            yield format_sample(f"{self.name}_sum", labels, total)
            yield format_sample(f"{self.name}_count", labels, below)


def format_sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"


def escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Telemetry:
    """All metrics of a server."""

    def __init__(self) -> None:
        self.requests = Counter("regard_requests_total", "Requests by path and status.")
        self.seconds = Histogram(
            "regard_request_seconds", "Time from a request to its answer.", SECONDS
        )
        self.batches = Histogram("regard_batch_texts", "Texts of a batch.", TEXTS)
        self.batch_seconds = Histogram(
            "regard_batch_seconds", "Time of the model for a batch.", SECONDS
        )
        self.dropped = Counter(
            "regard_dropped_total", "Requests whose client did not wait for the answer."
        )

    def observe_batch(self, texts: int, seconds: float) -> None:
        self.batches.observe(texts)
        self.batch_seconds.observe(seconds)

    def render(self, gauges: Mapping[str, tuple[str, Iterable[tuple[Labels, float]]]]) -> str:
        """Prometheus' text format; gauges, name -> (description, values), are read at the time of asking."""
        lines: list[str] = []
        for one in (self.requests, self.seconds, self.batches, self.batch_seconds, self.dropped):
            lines += [f"# HELP {one.name} {one.description}", f"# TYPE {one.name} {one.kind}"]
            lines += one.samples()
        for name, (description, values) in gauges.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
            lines += [format_sample(name, labels, value) for labels, value in values]
        return "\n".join(lines) + "\n"


# --- logs -----------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return documents.dumps(event, ensure_ascii=False)


def log_to_stderr() -> None:
    """Our events and those of uvicorn, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("regard.serve", "uvicorn.error"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).propagate = False


def log(event: str, **fields: Any) -> None:
    logger.info(event, extra={"fields": fields})
