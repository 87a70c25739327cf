"""Text larger than memory: how fast it is tokenised, and how much memory that and its batches need."""

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

import torch

from regard import config, documents
from regard.benchmarks.data import write_pairs
from regard.errors import UserError
from regard.models import build
from regard.text import corpus
from regard.text.shard_writer import write_shards
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import ShardedPairs, WindowDataset, WindowSampler
from regard.training.step import TrainStep

STAGES = ("scan", "tokenizer", "tokenising", "steps", "again")
"""Read the text; train a tokenizer on a sample; tokenise; the first training steps; a second start."""
CODE = f"import sys; from {__name__} import run_stages; run_stages(sys.argv[1], int(sys.argv[2]))"
MODEL = config.Recurrent(embedding_dim=8, hidden_dim=8)
"""Small: the data is measured."""
BATCH = (1024, 256)  # tokens, sentences
INTERVAL = 0.05  # seconds between two looks at the memory
MIB = 2**20


@dataclass(frozen=True)
class LargeData:
    """Seconds and peak memory of tokenising to disk (`data.storage`), and of the first training steps."""

    pairs: int = 1_000_000
    steps: int = 1000
    train: str | None = None
    """A .tsv, instead of one that is generated."""

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        if not Path("/proc/self/smaps_rollup").is_file():
            raise UserError(
                "this benchmark reads the memory of processes in /proc, which only Linux has"
            )
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if self.train is None:
                write_pairs(folder / "train.tsv", self.pairs, seed=0)
                report(f"{self.pairs:,} pairs are written")
            rows = self.measure(self.train or str(folder / "train.tsv"), folder / "cache", report)
            shards = folder.glob("cache/shards/**/*.ids")
            size = sum(path.stat().st_size for path in shards) / MIB
        about = {"pairs": self.pairs, "steps": self.steps, "cores": os.cpu_count()}
        return about | {"disk_mib": size, "rows": rows}

    def measure(
        self, train: str, cache: Path, report: Callable[[str], object]
    ) -> list[dict[str, Any]]:
        """Seconds, CPU seconds and peak memory of each stage, in a process of its own."""
        command = [sys.executable, "-c", CODE, train, str(self.steps)]
        environment = os.environ | {"REGARD_CACHE": str(cache)}
        rows, peak, now = [], 0, 0
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            while process.poll() is None or len(rows) < len(STAGES):
                now = sum_memory(process.pid) or now  # 0: it has ended
                peak = max(peak, now)
                time.sleep(INTERVAL)
                for line in process.stdout:
                    rows.append(json.loads(line) | {"peak_mib": peak / MIB})
                    report(
                        f"{rows[-1]['stage']}: {rows[-1]['seconds']:.1f} s, {peak / MIB:.0f} MiB"
                    )
                    peak = now
                if process.returncode:
                    raise RuntimeError(f"the benchmark failed with exit code {process.returncode}")
        return rows


def run_stages(train: str, steps: int) -> None:
    """What a training run does with its data before and in the first steps."""
    data = config.FileData(train=train, val=train, storage="disk")
    settings = config.Bpe(vocab_size=8000)
    torch.set_num_threads(1)

    def load() -> corpus.Corpus:
        return corpus.load(data, ("train",), on_disk=True)

    loaded = timed("scan", load)
    assert loaded.stream is not None
    stream = loaded.stream
    tokenizers = timed("tokenizer", lambda: TokenizerPair.train(settings, loaded["train"], ()))
    timed("tokenising", lambda: write_shards(stream, tokenizers))

    def train_steps() -> None:
        sampler = WindowSampler(
            ShardedPairs(write_shards(stream, tokenizers), tokenizers), *BATCH, 1
        )
        sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        model, data = build(MODEL, *sizes, tokenizers.joint), WindowDataset(sampler, "cpu")
        train_step = TrainStep(model, config.Training(), data, torch.float32, False, lambda _: None)
        for number, batch in enumerate(sampler.plan_epoch(0)[:steps]):
            train_step([batch], 1e-3, number)

    timed("steps", train_steps)
    timed("again", lambda: write_shards(load().stream or stream, tokenizers))


def timed(stage: str, function: Callable[[], Any]) -> Any:
    """The function's result; prints what it took. CPU time includes that of ended child processes."""
    seconds, before = time.perf_counter(), os.times()
    result = function()
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    row = {"stage": stage, "seconds": time.perf_counter() - seconds, "cpu_seconds": cpu}
    sys.stdout.write(documents.dumps(row) + "\n")
    sys.stdout.flush()
    return result


def sum_memory(pid: int) -> int:
    """Bytes of anonymous memory of a process and its children: without mapped files, whose pages the system
    drops when it needs them; what they share counts once.
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
