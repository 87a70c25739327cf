"""What sets two configs apart, in words."""

from typing import Any

from regard.config import Config


def changes(saved: Config, wanted: Config) -> list[str]:
    """What differs between two experiments, the words about them aside."""
    old, new = (config.model_dump(exclude={"description"}) for config in (saved, wanted))
    return differences(old, new)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Dotted names of what differs, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        inner = (differences(old.get(k), new.get(k), f"{path}.{k}".lstrip(".")) for k in keys)
        return [line for lines in inner for line in lines]
    return [] if old == new else [f"{path}: {old} there, {new} here"]
