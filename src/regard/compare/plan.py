"""Which runs a comparison needs: every preset, with every combination of what is varied, each seed."""

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard import presets
from regard.config import Config
from regard.errors import UserError


@dataclass(frozen=True)
class System:
    """One row of the table: a preset and the values that set it apart."""

    preset: str
    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Run:
    """One training of a system."""

    system: System
    seed: int
    folder: Path
    config: Config


def plan(
    names: Sequence[str], vary: Sequence[str], settings: Sequence[str], seeds: int, folder: Path
) -> list[Run]:
    """Every run, in the order of the table. Equal settings share a folder, however they came about."""
    if seeds < 1:
        raise UserError(f"--seeds is 1 or more, not {seeds}")
    axes = [axis(text) for text in vary]
    runs = []
    for name, values in itertools.product(names, itertools.product(*axes)):
        told = [*([Path(name).stem] if len(names) > 1 or not axes else []), *map(short, values)]
        system = System(name, values, ", ".join(told))
        for seed in range(1, seeds + 1):
            config = presets.load(name, [*settings, *values, f"seed={seed}"])
            if config.language_model:
                raise UserError(
                    f"{name} is a language model, and a comparison ranks translations: train it and "
                    "read its perplexity with `regard evaluate`"
                )
            place = folder / f"{Path(name).stem}-{fingerprint(config)}" / f"seed-{seed}"
            runs.append(Run(system, seed, place, config))
    if any(len({key(run) for run in runs}) < len(runs) for key in (named, lambda run: run.folder)):
        raise UserError("two systems are the same: name each preset and each value once")
    return runs


def named(run: Run) -> tuple[str, int]:
    return run.system.label, run.seed


# A comma inside {...}, [...] or "..." belongs to the value.
COMMA = re.compile(r""",(?![^{]*\})(?![^\[]*\])(?=(?:[^"]*"[^"]*")*[^"]*$)""")


def axis(text: str) -> list[str]:
    """'model.cell=gru,lstm' -> ['model.cell=gru', 'model.cell=lstm']"""
    key, equals, rest = text.partition("=")
    values = [value.strip() for value in COMMA.split(rest)]
    if not equals or not key.strip() or not all(values):
        raise UserError(f'"{text}" varies nothing: write key=a,b,c, as in model.cell=gru,lstm')
    return [f"{key.strip()}={value}" for value in values]


def short(setting: str) -> str:
    """The last part of the key, and the value: enough to tell rows apart."""
    path, value = presets.split(setting)
    name = [part for part in path if part != "kind"][-1]
    if not isinstance(value, dict):
        return f"{name} {setting.partition('=')[2]}"
    told = [str(v) if key == "kind" else f"{key} {v}" for key, v in value.items()]
    return " ".join([name, *told])


def fingerprint(config: Config) -> str:
    """A name for all settings but the seed and the words about them."""
    content = config.model_dump_json(exclude={"seed", "description"})
    return hashlib.sha256(content.encode()).hexdigest()[:8]
