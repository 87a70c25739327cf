"""How long own data takes until training starts, and how much memory, with and without cached ids."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

WORDS, SENTENCE = 50_000, 12
"""Different words, and words in a sentence. Word r has a probability in proportion to 1/r (Zipf's law)."""
VAL = 100
ONE_STEP = ("training.epochs=1e-9", "training.min_steps=1", "training.validate_every=1")


@dataclass(frozen=True)
class Data:
    """Seconds until training starts on own files, and peak memory, without and with cached ids."""

    pairs: int = 2_000_000

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for seed, (split, count) in enumerate({"train": self.pairs, "val": VAL}.items()):
                write_pairs(folder / f"{split}.tsv", count, seed)
            report(f"{self.pairs:,} pairs are written")
            data = '{kind = "files", train = "train.tsv", val = "val.tsv"}'
            (folder / "mine.toml").write_text(f"data = {data}\n", "utf-8")
            rows = []
            for cached_ids in (False, True):
                rows.append({"cached_ids": cached_ids} | measure_start(folder, f"run-{cached_ids}"))
                report(f"trained one step {'with' if cached_ids else 'without'} cached ids")
        return {"pairs": self.pairs, "cores": os.cpu_count(), "rows": rows}


def write_pairs(path: Path, count: int, seed: int) -> None:
    """Random sentences with natural frequencies of words; a target has other words than its source."""
    draw = np.random.default_rng(seed)
    words = np.array(["".join(letters) for letters in random_words(np.random.default_rng(0))])
    cumulated = np.cumsum(1 / np.arange(1, WORDS + 1))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, count, 10_000):
            shape = (min(10_000, count - start), SENTENCE)
            ranks = np.searchsorted(cumulated, draw.uniform(0, cumulated[-1], shape))
            for row in ranks:
                file.write(f"{' '.join(words[row])}\t{' '.join(words[row - 1])}\n")


def random_words(draw: np.random.Generator) -> Iterator[list[str]]:
    for length in draw.integers(2, 11, WORDS):
        yield [chr(ord("a") + letter) for letter in draw.integers(0, 26, length)]


def measure_start(folder: Path, run: str) -> dict[str, float]:
    """Train one step in a process of its own: seconds until the run's log starts, and peak memory."""
    settings = [part for setting in ONE_STEP for part in ("--set", setting)]
    command = [sys.executable, "-m", "regard", "train", str(folder / "mine.toml"), *settings]
    environment = os.environ | {"REGARD_CACHE": str(folder / "cache")}
    log, begin = folder / run / "metrics.jsonl", time.perf_counter()
    seconds, is_validated, has_ended = 0.0, False, None
    with subprocess.Popen(
        [*command, "--run", str(folder / run), "--device", "cpu"],
        env=environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        while not is_validated and has_ended is None:
            time.sleep(0.01)
            has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            text = log.read_text("utf-8") if log.is_file() else ""
            seconds = seconds or (time.perf_counter() - begin if text else 0.0)
            is_validated = '"validation"' in text
        # Not process.kill and process.wait: wait4 also tells the memory of this child alone.
        os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if not is_validated:
        raise RuntimeError(f"regard train failed with exit code {process.returncode}")
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB here
    return {"seconds": seconds, "peak_mib": usage.ru_maxrss / unit}
