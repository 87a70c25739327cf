"""Attacks on files: each changes a folder with a run and files of a user, and names a command.

`here` has `run/` (a finished run), `stopped/` (one to resume), `pairs.tsv` and `mine.toml` (a preset for it).
The command must end with one sentence, or with the result that it has without the attack.
"""

import gzip
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRANSLATE = ("translate", "run", "the cat sat on the mat.", "--device", "cpu")
RESUME = ("train", "--resume", "stopped", "--device", "cpu")
TRAIN = ("train", "mine.toml", "--run", "new", "--device", "cpu")


@dataclass(frozen=True)
class Attack:
    """`prepare(here)`, then `command`; `message` is found in what it prints if it must fail, with code 2."""

    prepare: Callable[[Path], object]
    command: tuple[str, ...]
    once: str
    """What it did before it was noticed."""
    message: str | None = None
    """None: the attack must not change what the command does."""


def append(file: str, content: bytes) -> Callable[[Path], object]:
    def prepare(here: Path) -> None:
        with (here / file).open("ab") as opened:
            opened.write(content)

    return prepare


def set_line(file: str, line: str) -> Callable[[Path], object]:
    """A setting before all tables of a TOML file."""

    def prepare(here: Path) -> None:
        path = here / file
        path.write_text(f"{line}\n{path.read_text('utf-8')}", "utf-8")

    return prepare


def flip(file: str, offset: int) -> Callable[[Path], object]:
    """One bit, counted from the end."""

    def prepare(here: Path) -> None:
        content = bytearray((here / file).read_bytes())
        content[-offset] ^= 0x10
        (here / file).write_bytes(content)

    return prepare


def replace_by(file: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def prepare(here: Path) -> None:
        (here / file).unlink()
        make(here / file)

    return prepare


def write_bomb(here: Path) -> None:
    """8 GB in 8 MB would take a while to write: 64 MB in 64 kB have the same ratio."""
    with gzip.open(here / "pairs.tsv.gz", "wb") as file:
        file.write(b"a\tb\n")
        for _ in range(64):
            file.write(bytes(2**20))
    toml = (here / "mine.toml").read_text("utf-8")
    (here / "mine.toml").write_text(toml.replace("pairs.tsv", "pairs.tsv.gz"), "utf-8")


def write_archive(here: Path) -> None:
    """A public corpus with members that would be written elsewhere if they were extracted."""
    (here / "data" / "tatoeba").mkdir(parents=True)
    with zipfile.ZipFile(here / "data" / "tatoeba" / "fra-eng.zip", "w") as archive:
        archive.writestr("../../escaped", "x")
        archive.writestr(str(here / "escaped"), "x")
    os.environ["REGARD_DATA"] = str(here / "data")


ATTACKS: dict[str, Attack] = {
    "a byte that is no UTF-8 in the log, then --resume": Attack(
        append("stopped/metrics.jsonl", b"\xff"), RESUME, "traceback", None
    ),
    "a byte that is no UTF-8 inside the log": Attack(
        lambda here: (here / "stopped/metrics.jsonl").write_bytes(
            b"\xff" + (here / "stopped/metrics.jsonl").read_bytes()
        ),
        RESUME,
        "traceback",
        r"metrics\.jsonl",
    ),
    "a byte that is no UTF-8 in the card": Attack(
        append("run/card.json", b"\xff"), ("info", "run"), "traceback", r"card\.json"
    ),
    "one bit of the weights": Attack(
        flip("run/model.safetensors", 100), TRANSLATE, "another translation", r"model\.safetensors"
    ),
    "one bit of a checkpoint": Attack(
        flip("stopped/last/state.safetensors", 5000),
        RESUME,
        "trained on with other weights",
        r"state\.safetensors",
    ),
    "a vocabulary with a token exchanged": Attack(
        lambda here: (here / "run/tokenizer.json").write_text(
            (here / "run/tokenizer.json").read_text("utf-8").replace('"cat"', '"dog "'), "utf-8"
        ),
        TRANSLATE,
        "another translation",
        r"tokenizer\.json",
    ),
    "arrays nested 5,000 deep in a preset": Attack(
        set_line("mine.toml", f"x = {'[' * 5000}{']' * 5000}"),
        TRAIN,
        "traceback: RecursionError",
        r"mine\.toml",
    ),
    "an integer of 5,000 digits in a preset": Attack(
        set_line("mine.toml", f"seed = {'9' * 5000}"), TRAIN, "traceback: ValueError", r"mine\.toml"
    ),
    "an integer of 5,000 digits in a run": Attack(
        set_line("run/config.toml", f"x = {'9' * 5000}"),
        TRANSLATE,
        "traceback: ValueError",
        r"config\.toml",
    ),
    "text that is 64 MB when decompressed": Attack(
        write_bomb, TRAIN, "read without a limit", r"pairs\.tsv\.gz"
    ),
    "members of an archive with paths": Attack(
        write_archive,
        ("train", "tatoeba-fr-en-tutorial", "--run", "new", "--device", "cpu"),
        "nothing: one member is read by its name, and none is extracted",
        r"fra\.txt",
    ),
    "a FIFO instead of the log": Attack(
        replace_by("stopped/metrics.jsonl", lambda path: os.mkfifo(path)),
        ("info", "stopped"),
        "nothing: only regular files are read",
    ),
    "a link from the weights to an endless file": Attack(
        replace_by("run/model.safetensors", lambda path: path.symlink_to("/dev/zero")),
        TRANSLATE,
        "nothing: only regular files are read",
        r"no trained model",
    ),
    "a config that names code": Attack(
        lambda here: (here / "run/config.toml").write_text(
            (here / "run/config.toml").read_text().replace('"gru"', '"os.system"')
        ),
        TRANSLATE,
        "nothing: kinds are names in a registry",
        r"config\.toml",
    ),
}
