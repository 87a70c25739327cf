"""User errors: mistakes in input or settings, reported in one sentence with the fix."""

import errno
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


def explain_unparsed(error: ValueError | RecursionError) -> str:
    """Why Python's parsers of TOML and JSON reject a text that has no mistake in its syntax."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it has an integer with too many digits" if "digits" in str(error) else str(error)


SHORTAGES = {
    # What Python, PyTorch and the loader of libraries say if the system refuses: what to do.
    (
        *("allocate memory", "not enough memory", "out of memory", "failed to map segment"),
        *("MemoryError", "bad_alloc", "could not create a primitive"),  # oneDNN
    ): (
        "out of memory: use a smaller model, shorter texts, a smaller beam or smaller batches "
        "(training.batch_tokens), or raise the limit (ulimit -v)"
    ),
    ("Too many open files",): "too many open files: raise the limit (ulimit -n)",
    ("start new thread", "Resource temporarily unavailable"): (
        "no more threads or processes can be started: raise the limit (ulimit -u)"
    ),
}
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)


def describe_shortage(error: BaseException) -> str:
    """One sentence about what the system refused (memory, disk space, open files), or "" if it is a bug."""
    text = f"{type(error).__name__}: {error}"
    for symptoms, sentence in SHORTAGES.items():
        if any(symptom in text for symptom in symptoms):
            return sentence
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return ""


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
