"""The commands that write, on data that takes a second, and what they leave: equal but for times."""

import csv
import io
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.models import weights

CONFIG = """
[data]
kind = "files"
train = "train.tsv"
val = "val.tsv"
test = "test.tsv"

[tokenizer]
kind = "characters"

[model]
kind = "transformer"
d_model = 8
d_ff = 11
dropout = 0.3
attention = {heads = 2}
encoder = {layers = 1}
decoder = {layers = 1}

[training]
epochs = 2
batch_sentences = 8
validate_every = 5
learning_rate = 0.02
warmup_steps = 4

[search]
max_ratio = 1
max_extra = 2
"""
SIZES = {"train": 43, "val": 2, "test": 5}  # of each validation sentence, a run draws a diagram
TEXT = "cab"
ON_HUB = "hf:me/run"  # a finished run, on a server of this machine
OLD = "written earlier, and good\n"


def write_data(folder: Path) -> None:
    """The config, its text (words and their reverse), and a file to translate."""
    (folder / "task.toml").write_text(CONFIG)
    for seed, (split, size) in enumerate(SIZES.items()):
        generator = random.Random(seed)
        words = ["".join(generator.choices("abcde", k=3 + n % 7)) for n in range(size)]
        (folder / f"{split}.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    (folder / "in.txt").write_text("abc\n\nbead\n")


@dataclass(frozen=True)
class Command:
    """What is typed, and what is typed again after a failure. The folder has what `start` left before."""

    words: str
    start: str = "data"
    again: str = ""
    keeps: tuple[str, ...] = ()
    """Files that were there before: as they were, or replaced by complete ones."""
    partial_failure: bool = False
    """Whether exit code 1 may say that a part failed, as in a comparison of several runs."""
    once: bool = False
    """Whether the result, once complete, is not written again: the second command says so."""

    def arguments(self, again: bool = False) -> list[str]:
        return (self.again if again and self.again else self.words).split()


TRAIN = "train task.toml --run run --device cpu"
AVERAGE = f"{TRAIN} --set training.average_checkpoints=2"
COMPARE = (
    "compare task.toml --set training.validate_every=1000 --columns seeds,exact_match --device cpu"
)
# What a folder holds before a command: the command that made it so.
STARTS = {
    "data": "",
    "interrupted": TRAIN,
    "finished": TRAIN,
    "kept": f"{TRAIN} --set training.keep_last=true",
    "hub": "",
    "cached": f"{COMPARE} --seeds 1 --out other",
}
COMMANDS = {
    "train": Command(TRAIN, again=f"{TRAIN} --resume"),
    "train, averaged": Command(AVERAGE, again=f"{AVERAGE} --resume"),
    "train --resume": Command("train --resume run --device cpu", "interrupted"),
    "train --resume, finished": Command("train --resume run --device cpu", "finished"),
    "compare --jobs 2": Command(
        f"{COMPARE} --seeds 2 --jobs 2 --out table", "cached", partial_failure=True
    ),
    "export --to hub": Command("export run --to hub --out hub --no-bleu", "finished", once=True),
    "export --to page": Command(
        "export run --to page --out page.html --overwrite", "finished", keeps=("page.html",)
    ),
    "export --to ctranslate2": Command(
        "export run --to ctranslate2 --out model", "finished", once=True
    ),
    "evaluate --outputs": Command(
        "evaluate run --outputs out.tsv --overwrite --device cpu", "finished", keeps=("out.tsv",)
    ),
    "diagram, png": Command(
        f"diagram run --out a.png --overwrite --device cpu {TEXT}", "finished", keeps=("a.png",)
    ),
    "diagram, html": Command(
        f"diagram run --out a.html --overwrite --device cpu {TEXT}", "finished", keeps=("a.html",)
    ),
    "translate --output": Command(
        "translate run --input in.txt --output out.txt --device cpu",
        "finished",
        keeps=("out.txt",),
    ),
    "translate --engine ctranslate2": Command(
        f"translate run {TEXT} --engine ctranslate2 --output out.txt",
        "finished",
        keeps=("out.txt",),
    ),
    "translate, from the hub": Command(
        f"translate {ON_HUB} {TEXT} --output out.txt --device cpu", "hub", keeps=("out.txt",)
    ),
    "augment": Command(
        # Samples: after two epochs, greedy search seldom finds an end.
        "augment run --input train --sample --out pairs.jsonl --max-ratio 9 --overwrite --device cpu",
        "finished",
        keeps=("pairs.jsonl",),
    ),
    "lab --worksheet": Command("lab qkv --worksheet sheets", once=True),
}


def remove_times(value: Any) -> Any:
    """A JSON document without what the clock decides, and what follows from that."""
    if isinstance(value, dict):
        return {
            key: remove_times(part)
            for key, part in value.items()
            if not re.search("seconds|per_second|metrics_bytes", key)
        }
    return [remove_times(part) for part in value] if isinstance(value, list) else value


def read_csv(text: str) -> list[dict[str, str]]:
    return [remove_times(row) for row in csv.DictReader(io.StringIO(text))]


def read_tensors(path: Path) -> Any:
    tensors, record = weights.read(path)
    return {name: t.numpy().tobytes() for name, t in tensors.items()}, remove_times(record)


READERS: dict[str, Callable[[Path], Any]] = {
    ".json": lambda path: remove_times(json.loads(path.read_text("utf-8"))),
    ".jsonl": lambda path: [
        remove_times(json.loads(line)) for line in path.read_text("utf-8").splitlines()
    ],
    ".csv": lambda path: read_csv(path.read_text("utf-8")),
    ".safetensors": read_tensors,
    ".log": lambda _: None,  # of a job: lines with times, and of how many sessions it took
}


def read_results(folder: Path) -> dict[str, Any]:
    """The content of every file below a folder, by name, without times."""
    return {
        str(path.relative_to(folder)): READERS.get(path.suffix, Path.read_bytes)(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
