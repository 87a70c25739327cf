"""User errors: mistakes in input or settings, reported in one sentence with the fix."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 3000  # characters


class UserError(ValueError):
    """A mistake that the user can fix. The command line prints its message and exits with code 2.

    A message that quotes a file could be as long as the file: its middle is left out.
    """

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:1000]} ... {message[-1000:]}"
        super().__init__(message)


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


def is_rust_error(error: BaseException) -> bool:
    """Whether a library in Rust raised it for its input: a panic is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def suggest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean "x"?' if one of the choices is spelled almost like `word`, else an empty string."""
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.6)
    return f' Did you mean "{lowered[close[0]]}"?' if close else ""


def join_names(choices: Iterable[str]) -> str:
    """'a, b, c' for a message."""
    return ", ".join(choices)
