"""Defaults that follow the amount of data: what a model of your own files gets where you set nothing.

With x = (training pairs / 2,000)^(1/4), between 500 and 200,000 pairs:

    model.hidden_dim, embedding_dim, d_model   128 x     a multiple of 32, at least 128; d_ff: 2 d_model
    tokenizer.vocab_size                       1,000 x²  in hundreds, at most 8,000; the tokenizer is BPE
    training.batch_sentences                   32 x²     a multiple of 8
    training.epochs                            30 / x    rounded up, and 1,000 steps at least (min_steps)

so that the number of steps grows with x; with R-Drop, twice as many epochs. Dropout is 0.3, and 0.15 from
60,000 pairs; label smoothing is 0.1 and the peak learning rate 0.002. results/README.md has what each value
is worth.
"""

from math import ceil, lcm
from typing import Any

from regard.config import Config, Recurrent

FEWEST, MOST = 500, 200_000
"""The pairs between which the rule holds; outside, it stays at the nearer one."""


def follows_data(config: Config) -> bool:
    """Whether unset values follow the number of pairs: your own data, a model trained from scratch."""
    return config.data.is_user_data and not config.is_pretrained


def follow_data(config: Config, pairs: int) -> Config:
    """The config with every value that nobody has set chosen for this number of training pairs."""
    table = config.model_dump(exclude_unset=True)
    for path, value in choose_values(config, pairs).items():
        section, key = path.split(".")
        table[section] = {**table.get(section, {}), key: value}
    return Config.model_validate(table)


def chosen_values(given: Config, resolved: Config) -> dict[str, Any]:
    """The values by which `follow_data` turned the first config into the second, by dotted name."""
    return {
        path: value
        for section in ("tokenizer", "model", "training")
        for key, value in getattr(resolved, section)
        if is_set(resolved, path := f"{section}.{key}") and not is_set(given, path)
    }


def choose_values(config: Config, pairs: int) -> dict[str, Any]:
    """The rule's values for this number of pairs, by dotted name, without those that are set."""
    pairs = min(max(pairs, FEWEST), MOST)
    x = (pairs / 2000) ** (1 / 4)
    values = choose_tokenizer(config, x) | choose_width(config, x)
    longer = 2 if config.training.r_drop else 1
    values |= {
        "model.dropout": 0.3 if pairs < 60_000 else 0.15,
        "training.epochs": float(longer * ceil(30 / x)),
        "training.batch_sentences": 8 * round(32 * x**2 / 8),
        "training.learning_rate": 2e-3,
        "training.label_smoothing": 0.1,
    }
    if not is_set(config, "training.epochs"):
        values["training.min_steps"] = 1000
    return {path: value for path, value in values.items() if not is_set(config, path)}


def choose_tokenizer(config: Config, x: float) -> dict[str, Any]:
    """BPE, unless the tokenizer has another kind, and its vocabulary size."""
    is_chosen = is_set(config, "tokenizer.kind") or is_set(config, "tokenizer.min_frequency")
    if is_chosen and config.tokenizer.kind != "bpe":
        return {}
    vocab_size = min(100 * round(1000 * x**2 / 100), 8000)
    return {"tokenizer.kind": "bpe", "tokenizer.vocab_size": vocab_size}


def choose_width(config: Config, x: float) -> dict[str, int]:
    """The dimensions of a recurrent model, or of a Transformer, whose heads divide d_model evenly."""
    if isinstance(config.model, Recurrent):
        width = max(128, 32 * round(128 * x / 32))
        return {"model.embedding_dim": width, "model.hidden_dim": width}
    if is_set(config, "model.d_model"):
        return {}
    unit = lcm(32, 2 * config.model.attention.heads)
    width = max(lcm(128, unit), unit * round(128 * x / unit))
    return {"model.d_model": width, "model.d_ff": 2 * width}


def is_set(config: Config, path: str) -> bool:
    """Whether the setting of this dotted name was given, in a TOML file, in a preset or by --set."""
    section, key = path.split(".")
    return section in config.model_fields_set and key in getattr(config, section).model_fields_set
