"""User errors: mistakes in input or settings, reported in one sentence with the fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can fix. The command line prints its message and exits with code 2."""


class RegardWarning(UserWarning):
    """What a user should know, though the command goes on. The command line prints its message."""


class NotFiniteError(UserError):
    """NaN or infinity in the output of a model, raised where the output reaches the host."""

    def __init__(self) -> None:
        super().__init__(
            "the model's output is not finite (NaN or infinity): its weights are damaged, or training "
            "diverged. Restore model.safetensors from a copy, or train again with a lower "
            "training.learning_rate"
        )


def suggest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean "x"?' if one of the choices is spelled almost like `word`, else an empty string."""
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.6)
    return f' Did you mean "{lowered[close[0]]}"?' if close else ""


def join_names(choices: Iterable[str]) -> str:
    """'a, b, c' for a message; a file may have names without end, of which the start is given."""
    names = [name if len(name) <= 200 else f"{name[:60]}..." for name in choices]
    return ", ".join(names if len(names) <= 100 else [*names[:20], f"and {len(names) - 20:,} more"])
