"""The Ray cluster that runs are executed on: connect to it, and check that it can execute them."""

import logging
import os
import signal
import socket
import threading
import warnings
from typing import Any
from urllib.parse import urlsplit

from regard import signals
from regard.compare.ray_worker import Worker, fingerprint
from regard.errors import UserError, suggest

LOCAL = "local"
CONNECT_TIMEOUT = 5.0  # seconds; Ray itself would try for minutes
CHECK_TIMEOUT = 120.0
GRANULARITY = 10_000  # of Ray's fractions of a GPU
NODE_LABELS = ("ray.io/node-id", "ray.io/node_id")  # one or the other, by version


def parse_address(on: str) -> str:
    """The address of --on: that of RAY_ADDRESS, or "local", for "ray"."""
    if on != "ray" and not on.startswith("ray://"):
        raise UserError(
            f'--on is ray, or the address of a Ray cluster, ray://host:port: got "{on}".'
            f"{suggest(on, ['ray'])}"
        )
    address = os.environ.get("RAY_ADDRESS") or LOCAL if on == "ray" else on
    if address not in (LOCAL, "auto"):
        parse_host(address)
    return address


def parse_host(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise UserError(
        f'"{address}" is no address of a Ray cluster: write --on ray://host:port, as in '
        "--on ray://head:10001, or RAY_ADDRESS=host:port, as in RAY_ADDRESS=head:6379"
    )


class Cluster:
    """A connection to Ray, and what each run gets: `threads` CPUs, and a part of a GPU if it uses one."""

    def __init__(self, on: str, device: str, threads: int, per_gpu: int | None) -> None:
        address = parse_address(on)
        if device not in ("auto", "cpu", "cuda"):
            raise UserError(
                "with --on ray the device is auto, cpu or cuda, and Ray chooses which one: got "
                f'"{device}"'
            )
        self.threads = threads
        self.ray = connect(address)
        try:
            self.nodes = [node for node in self.ray.nodes() if node["Alive"]]
            self.device = self.choose_device(device, per_gpu)
            self.per_gpu = per_gpu or 1
            self.check_threads()
            if address != LOCAL:
                self.check_code()
        except BaseException:
            self.ray.shutdown()
            raise

    def count(self, resource: str) -> list[float]:
        """How much of a resource each node has."""
        return [node["Resources"].get(resource, 0.0) for node in self.nodes]

    def choose_device(self, device: str, per_gpu: int | None) -> str:
        has_gpu = any(self.count("GPU"))
        wanted = "--device cuda" if device == "cuda" else f"--per-gpu {per_gpu}" if per_gpu else ""
        if device == "cpu" and per_gpu:
            raise UserError(f"--per-gpu {per_gpu} and --device cpu are both given: choose one")
        if wanted and not has_gpu:
            raise UserError(f"{wanted}: this Ray cluster has no GPU: use --device cpu")
        return "cuda" if device != "cpu" and has_gpu else "cpu"

    def check_threads(self) -> None:
        most = int(max(self.count("CPU"), default=0))
        if self.threads > most:
            raise UserError(
                f"--threads {self.threads}: the largest node of this Ray cluster has {most} CPUs"
            )

    def check_code(self) -> None:
        """Raise an error unless every node has this very version of the package."""
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self.ray.remote(fingerprint)
        references = {
            node["NodeManagerHostname"]: task.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote()
            for node in self.nodes
            if node["Resources"].get("CPU")
        }
        for name, reference in references.items():
            try:
                found = self.ray.get(reference, timeout=CHECK_TIMEOUT)
            except RayError:
                found = ""
            if found != fingerprint():
                problem = "another version of regard" if found else "no regard that can be imported"
                raise UserError(
                    f"the node {name} of this Ray cluster has {problem}: install "
                    "the one that is here on every node"
                )

    def describe(self) -> str:
        """'on Ray: 2 nodes, 16 CPUs, 2 GPUs'"""
        cpus, gpus = int(sum(self.count("CPU"))), int(sum(self.count("GPU")))
        counts = {"node": len(self.nodes), "CPU": cpus, "GPU": gpus}
        parts = [
            f"{number} {name}{'s' * (number != 1)}" for name, number in counts.items() if number
        ]
        return f"on Ray: {', '.join(parts)}"

    def runs_per_device(self) -> int:
        """How many runs may share a device, for the card of a run."""
        if self.device == "cuda":
            return self.per_gpu
        return int(max(self.count("CPU"))) // self.threads

    def create_worker(self, avoided: list[str]) -> Any:
        """An actor for one run, on another node than `avoided` ones if there is room."""
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        # Rounded down, so that as many as asked for fit.
        fraction = GRANULARITY // self.per_gpu / GRANULARITY if self.device == "cuda" else 0
        options: dict[str, Any] = {"num_cpus": self.threads, "num_gpus": fraction}
        if avoided:
            soft: Any = {label: NotIn(*avoided) for label in NODE_LABELS}
            options["scheduling_strategy"] = NodeLabelSchedulingStrategy(hard={}, soft=soft)
        return self.ray.remote(Worker).options(**options).remote()


def connect(address: str) -> Any:
    """Ray's module, connected."""
    options: dict[str, Any] = {}
    if address == LOCAL:
        # No statistics are sent, no page is served, and no port is open to other machines.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux, too: use 127.0.0.1 only
        options["include_dashboard"] = False
    elif address != "auto":
        check_reachable(address)
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs one more package: pip install 'regard[ray]'") from None
    former = {number: signal.getsignal(number) for number in signals.ENDING}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error that follows says it
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"Ray cannot be used at {address}: {reason}") from None
    finally:
        # Ray handles SIGTERM with an exit at once, and no run could save a checkpoint.
        if threading.current_thread() is threading.main_thread():
            signals.restore_handlers({n: h for n, h in former.items() if h is not None})
    return ray


def check_reachable(address: str) -> None:
    host, port = parse_host(address)
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check the address, and "
            "that `ray status` works there"
        ) from None
