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

# Settings that also hold for what a run starts from: its weights and its tokens must fit.
COMMON = ("model.", "model=", "tokenizer.kind=", "tokenizer.joint=", "tokenizer.lowercase=")


@dataclass(frozen=True)
class System:
    """One row of the table: a preset and the values that set it apart."""

    preset: str
    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Run:
    """One training of a system, and the run that must be there before, if it starts from one."""

    system: System
    seed: int
    folder: Path
    config: Config
    first: "Run | None" = None


def plan(
    names: Sequence[str],
    vary: Sequence[str],
    settings: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
) -> list[Run]:
    """Every run, in the order of the table. Equal settings share a folder, however they came about.

    `seeds`: how many of each preset, or one number for all.
    """
    if len(seeds) not in (1, len(names)):
        raise UserError(
            f"--seeds is one number for all presets, or one for each: got {len(seeds)} numbers and "
            f"{len(names)} presets"
        )
    axes = [axis(text) for text in vary]
    counts = dict(zip(names, itertools.cycle(seeds), strict=False))
    runs = []
    for name, values in itertools.product(names, itertools.product(*axes)):
        told = [*([Path(name).stem] if len(names) > 1 or not axes else []), *map(short, values)]
        system = System(name, values, ", ".join(told))
        for seed in range(1, counts[name] + 1):
            run = planned(system, seed, [*settings, *values, f"seed={seed}"], folder)
            if run.config.is_language_model:
                raise UserError(
                    f"{name} is a language model, and a comparison ranks translations: train it and "
                    "read its perplexity with `regard evaluate`"
                )
            runs.append(run)
    if any(len({key(run) for run in runs}) < len(runs) for key in (named, lambda run: run.folder)):
        raise UserError("two systems are the same: name each preset and each value once")
    return runs


def planned(
    system: System, seed: int, settings: Sequence[str], folder: Path, after: tuple[str, ...] = ()
) -> Run:
    """One run. If it is to start from a preset, that is planned first: once, whatever the seed."""
    config, first, after = presets.load(system.preset, settings), None, (*after, system.preset)
    if config.init is not None and not Path(config.init).is_dir():
        if config.init in after:
            raise UserError(f"init goes round in a circle: {' from '.join((*after, config.init))}")
        base = System(config.init, (), Path(config.init).stem)
        common = [setting for setting in settings if setting.startswith(COMMON)]
        first = planned(base, presets.load(base.preset).seed, common, folder, after)
        # From where the run will lie: the folder of all runs may move.
        place = Path("..", "..", *first.folder.relative_to(folder).parts)
        config = config.model_copy(update={"init": str(place)})
    name = f"{Path(system.preset).stem}-{fingerprint(config)}"
    return Run(system, seed, folder / name / f"seed-{seed}", config, first)


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
    path, value = presets.parse_setting(setting)
    name = [part for part in path if part != "kind"][-1]
    if not isinstance(value, dict):
        return f"{name} {setting.partition('=')[2]}"
    told = [str(v) if key == "kind" else f"{key} {v}" for key, v in value.items()]
    return " ".join([name, *told])


def fingerprint(config: Config) -> str:
    """A name for all settings but the seed and the words about them."""
    content = config.model_dump_json(exclude={"seed", "description"})
    return hashlib.sha256(content.encode()).hexdigest()[:8]
