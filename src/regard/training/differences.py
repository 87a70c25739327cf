"""Differences between two configs, for error messages."""

from typing import Any

from regard.config import Config


def changed_settings(saved: Config, given: Config) -> list[str]:
    """The settings that differ between two experiments, without their descriptions."""
    old, new = (config.model_dump(exclude={"description"}) for config in (saved, given))
    return list_differences(old, new)


def list_differences(saved: Any, given: Any, path: str = "") -> list[str]:
    """Dotted names of the settings that differ, each with both values."""
    if isinstance(saved, dict) and isinstance(given, dict):
        keys = dict.fromkeys([*saved, *given])
        nested = (
            list_differences(saved.get(key), given.get(key), f"{path}.{key}".lstrip("."))
            for key in keys
        )
        return [line for lines in nested for line in lines]
    return [] if saved == given else [f"{path}: saved {saved}, given {given}"]
