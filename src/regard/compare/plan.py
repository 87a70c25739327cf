"""Plan the runs of a comparison: presets x combinations of varied settings x seeds."""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import documents, presets
from regard.config import Config, Table, limits
from regard.errors import UserError
from regard.shipped import find_run, split_runs
from regard.text import corpus
from regard.training import synthetic
from regard.training.data import LoadCorpus, load_once, resolve_defaults

# Settings that a prerequisite run shares, so that its weights and tokens fit.
SHARED_SETTINGS = (
    "model.",
    "model=",
    "tokenizer.kind=",
    "tokenizer.joint=",
    "tokenizer.lowercase=",
)


@dataclass(frozen=True)
class System:
    """One row of the table: a preset and its values of the varied settings."""

    preset: str
    settings: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Run:
    """One training run of a system, and what comes before: runs that provide its initial weights and its
    synthetic pairs.
    """

    system: System
    seed: int
    folder: Path
    config: Config
    prerequisites: "tuple[Run, ...]" = ()
    makes_pairs: bool = False
    """Whether it only makes the synthetic pairs of its config."""

    @property
    def title(self) -> str:
        return f"{self.system.label}, seed {self.seed}"


def plan(
    names: Sequence[str],
    vary: Sequence[str],
    settings: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
) -> list[Run]:
    """All runs, in the order of the table. Runs with equal configs share a folder.

    `seeds`: the number of seeds of each preset, or one number for all presets.
    """
    if len(seeds) not in (1, len(names)):
        raise UserError(
            f"--seeds takes one number for all presets, or one per preset: got {len(seeds)} numbers "
            f"and {len(names)} presets"
        )
    axes = [parse_axis(text) for text in vary]
    seed_counts = dict(zip(names, itertools.cycle(seeds), strict=False))
    total = math.prod(map(len, axes)) * sum(seed_counts[name] for name in names)
    if total > limits.RUNS:
        raise UserError(
            f"these are {total:,} runs, and a comparison has at most {limits.RUNS:,}: name fewer presets, "
            "values (--vary) or seeds (--seeds)"
        )
    load_corpus = load_once(
        partial(corpus.load, splits=("train",), on_disk=True)
    )  # read once for all runs
    runs = []
    for name, values in itertools.product(names, itertools.product(*axes)):
        prefix = [Path(name).stem] if len(names) > 1 or not axes else []
        system = System(name, values, ", ".join([*prefix, *map(short_label, values)]))
        for seed in range(1, seed_counts[name] + 1):
            run = plan_run(system, seed, [*settings, *values, f"seed={seed}"], folder, load_corpus)
            if run.config.is_language_model:
                raise UserError(
                    f"{name} is a language model, and `regard compare` ranks translation models: "
                    "train it and measure its perplexity with `regard evaluate`"
                )
            runs.append(run)
    labels = {(run.system.label, run.seed) for run in runs}
    if min(len(labels), len({run.folder for run in runs})) < len(runs):
        raise UserError("two systems have the same settings: name each preset and each value once")
    return runs


def plan_run(
    system: System,
    seed: int,
    settings: Sequence[str],
    folder: Path,
    load_corpus: LoadCorpus = partial(corpus.load, on_disk=True),  # noqa: B008
    ancestors: tuple[str, ...] = (),
) -> Run:
    """One run of a preset, with these settings."""
    config = presets.load(system.preset, settings)
    return plan_config(config, system, seed, settings, folder, load_corpus, ancestors)


def plan_config(
    config: Config,
    system: System,
    seed: int,
    settings: Sequence[str],
    folder: Path,
    load_corpus: LoadCorpus,
    ancestors: tuple[str, ...],
) -> Run:
    """One run. If `init` or a `from` names a preset, that run is its prerequisite: one for all seeds."""
    list(synthetic.makers(config))  # an error for a circle
    config = resolve_defaults(config, load_corpus)
    config, prerequisites = plan_pairs(config, folder, load_corpus)
    ancestors = (*ancestors, system.preset)
    if config.init is not None and not find_run(config.init).is_dir():
        if config.init in ancestors:
            chain = " from ".join((*ancestors, config.init))
            raise UserError(f"init is circular: {chain}")
        base = System(config.init, (), Path(config.init).stem)
        shared = [setting for setting in settings if setting.startswith(SHARED_SETTINGS)]
        base_seed = presets.load(base.preset).seed
        prerequisite = plan_run(base, base_seed, shared, folder, load_corpus, ancestors)
        config = config.model_copy(update={"init": relative_path(prerequisite.folder, folder)})
        prerequisites += (prerequisite,)
    name = f"{Path(system.preset).stem}-{fingerprint(config)}"
    return Run(system, seed, folder / name / f"seed-{seed}", config, prerequisites)


def plan_pairs(
    config: Config, folder: Path, load_corpus: LoadCorpus
) -> tuple[Config, tuple[Run, ...]]:
    """The config with the files of its synthetic pairs, and the runs that make them, each once."""
    runs, entries = [], {}
    for number, entry in synthetic.recipes(config):
        before: tuple[Run, ...] = ()
        names, data = split_runs(entry.translator), config.data
        makers = "+".join(Path(name).stem for name in names)
        recipe = entry.model_copy(update={"file": None, "repeat": 1, "tag": False})
        if not synthetic.is_run(entry.translator):
            reverse = synthetic.reverse_config(entry, data)
            system = System(entry.translator, (), makers)
            before = (plan_config(reverse, system, reverse.seed, [], folder, load_corpus, ()),)
            recipe = recipe.model_copy(update={"from": relative_path(before[0].folder, folder)})
        data = data.model_copy(update={"synthetic": (recipe,), "repeat": 1})
        pairs = Config.model_validate({"data": data})
        made = folder / f"pairs-{fingerprint(pairs)}" / "1"
        recipe = recipe.model_copy(update={"file": synthetic.PAIRS})
        pairs = synthetic.replace_entries(pairs, {0: recipe})
        system = System(entry.translator, (), f"pairs by {makers}")
        runs.append(Run(system, 1, made, pairs, before, makes_pairs=True))
        # By name and place of what made them, not of a .toml: experiments may be moved, too.
        origin = {"from": recipe.translator, "file": relative_path(made / synthetic.PAIRS, folder)}
        entries[number] = entry.model_copy(update=origin)
    return synthetic.replace_entries(config, entries), tuple(runs)


def relative_path(path: Path, folder: Path) -> str:
    """As seen from a run's folder, so that the `folder` of all runs can be moved."""
    return str(Path("..", "..", *path.relative_to(folder).parts))


def parse_axis(text: str) -> list[str]:
    """'model.cell=gru,lstm' -> ['model.cell=gru', 'model.cell=lstm']"""
    key, equals, rest = text.partition("=")
    values = split_values(rest)
    if not equals or not key.strip() or not all(values):
        raise UserError(
            f'"{text}" is not a valid --vary: write key=a,b,c, as in model.cell=gru,lstm'
        )
    return [f"{key.strip()}={value}" for value in values]


def split_values(text: str) -> list[str]:
    """'a, {b=1, c=2}' -> ['a', '{b=1, c=2}']: a value ends at the first comma where it is complete."""
    values, value = [], ""
    for part in text.split(","):
        value += part
        if presets.is_complete(value):
            values.append(value.strip())
            value = ""
        else:
            value += ","
    if value:
        raise UserError(f"--vary: a bracket or a quote is missing in {value.rstrip(',').strip()}")
    return values


def short_label(setting: str) -> str:
    """The last part of the key, and the value: 'model.cell=gru' -> 'cell gru'."""
    path, value = presets.parse_setting(setting)
    name = [part for part in path if part != "kind"][-1]
    text = describe(value) if isinstance(value, dict) else setting.partition("=")[2]
    return f"{name} {text}"


def describe(value: Any) -> str:
    """{'kind': 'relative', 'form': 'query'} -> 'relative form query'"""
    if not isinstance(value, dict):
        return str(value)
    return " ".join(
        describe(inner) if key == "kind" else f"{key} {describe(inner)}"
        for key, inner in value.items()
    )


def fingerprint(config: Config) -> str:
    """A short hash of the settings that differ from their defaults, except the seed and the description.

    A setting that a later version adds changes no fingerprint as long as it has its default.
    """
    settings = non_defaults(config)
    for name in ("seed", "description"):
        settings.pop(name, None)
    content = documents.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def non_defaults(value: Any) -> Any:
    """A table as a dict of its kind and of the settings that differ from their defaults."""
    if isinstance(value, tuple):
        return [non_defaults(item) for item in value]
    if not isinstance(value, Table):
        return value
    fields = type(value).model_fields
    return {
        name: non_defaults(setting)
        for name, setting in value
        # A user's own kind has settings without a declaration.
        if name == "kind" or name not in fields or setting != fields[name].default
    }
