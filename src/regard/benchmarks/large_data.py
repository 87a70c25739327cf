"""Text larger than memory: how fast it is tokenised, and how much memory that and training need."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regard.benchmarks.data import VAL, write_pairs
from regard.errors import UserError

SETTINGS = {
    "tokenizer.kind": "bpe",
    "tokenizer.vocab_size": 8000,
    "model.kind": "recurrent",
    "model.embedding_dim": 16,
    "model.hidden_dim": 16,
    "training.batch_sentences": 64,
    "training.epochs": 1e-9,
}
"""A small model, the same for any number of pairs: what is measured is the memory of the data."""
INTERVAL = 0.05  # seconds between two looks at the memory
MIB = 2**20


@dataclass(frozen=True)
class LargeData:
    """Pairs per second of tokenising to disk, and peak memory of that and of the first steps."""

    pairs: int = 1_000_000
    steps: int = 1000

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        if not Path("/proc/self/smaps_rollup").is_file():
            raise UserError(
                "this benchmark reads the memory of processes from /proc, as Linux has it"
            )
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for seed, (split, count) in enumerate({"train": self.pairs, "val": VAL}.items()):
                write_pairs(folder / f"{split}.tsv", count, seed)
            report(f"{self.pairs:,} pairs are written")
            rows = []
            for cached_ids in (False, True):
                row = self.measure(folder, folder / f"run-{cached_ids}")
                rows.append({"cached_ids": cached_ids} | row)
                report(f"trained {self.steps:,} steps {'with' if cached_ids else 'without'} shards")
            size = sum(path.stat().st_size for path in folder.glob("cache/shards/**/*.ids"))
        about = {"pairs": self.pairs, "steps": self.steps, "cores": os.cpu_count()}
        return about | {"disk_mib": size / MIB, "rows": rows}

    def measure(self, folder: Path, run: Path) -> dict[str, float]:
        """Train the first steps in a process of its own."""
        data = {"kind": "files", "train": str(folder / "train.tsv"), "val": str(folder / "val.tsv")}
        settings = {f"data.{key}": value for key, value in (data | {"storage": "disk"}).items()}
        settings |= {"training.min_steps": self.steps, "training.validate_every": self.steps}
        options = [
            part
            for key, value in (SETTINGS | settings).items()
            for part in ("--set", f"{key}={json.dumps(value)}")
        ]
        base = folder / "mine.toml"
        base.write_text(
            f"data = {{{', '.join(f'{k} = {json.dumps(v)}' for k, v in data.items())}}}\n"
        )
        command = [sys.executable, "-m", "regard", "train", str(base), *options, "--run", str(run)]
        environment = os.environ | {"REGARD_CACHE": str(folder / "cache")}
        begin, seconds, peaks = time.perf_counter(), 0.0, [0, 0]
        with subprocess.Popen(
            [*command, "--device", "cpu"], env=environment, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                has_started = (run / "metrics.jsonl").is_file()
                if has_started and not seconds:
                    seconds = time.perf_counter() - begin
                peaks[has_started] = max(peaks[has_started], sum_memory(process.pid))
                time.sleep(INTERVAL)
        if process.returncode:
            raise RuntimeError(f"regard train failed with exit code {process.returncode}")
        tokenising = self.tokenising_seconds(folder / "cache")
        return {
            "seconds_until_training": seconds,
            "tokenising_seconds": tokenising,
            "pairs_per_second": self.pairs / tokenising,
            "peak_mib_until_training": peaks[0] / MIB,
            "peak_mib_of_steps": peaks[1] / MIB,
        }

    @staticmethod
    def tokenising_seconds(cache: Path) -> float:
        """From the start of the processes, when the tokenizer is written, to the last shard."""
        [start] = [path.stat().st_mtime for path in cache.glob("shards/*/*/tokenizer.json")]
        return max(path.stat().st_mtime for path in cache.glob("shards/*/*/*.ids")) - start


def sum_memory(pid: int) -> int:
    """Bytes of anonymous memory of a process and its children: without mapped files, whose pages the system
    drops when it needs them, and shared memory counted once.
    """
    total = 0
    for each in family(pid):
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    total += 1024 * int(line.split()[1])
    return total


def family(pid: int) -> Iterator[int]:
    """A process, its children, their children."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))
