"""What goes wrong because of what a user gave us, said in a sentence that helps."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake the user can mend. The command line shows its message alone and exits with 2."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean "x"?' when a choice is spelled nearly like `word`, else nothing."""
    lowered = {choice.lower(): choice for choice in choices}
    close = get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.6)
    return f' Did you mean "{lowered[close[0]]}"?' if close else ""


def listing(choices: Iterable[str]) -> str:
    """'a, b, c' for a message."""
    return ", ".join(choices)
