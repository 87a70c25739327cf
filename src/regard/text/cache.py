"""Text is tokenised once: the ids lie in the user's cache under a name made from the content."""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np

from regard.text import datasets
from regard.text.batch import Encoded, Ragged
from regard.text.tokenizer import TokenizerPair

PARTS = ("source.values", "source.ends", "target.values", "target.ends")


def encoded(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> Encoded:
    """`Encoded.of`, memory-mapped from the cache if these pairs were tokenised before."""
    folder = datasets.cache() / "tokenised" / key(pairs, tokenizers)
    try:
        parts = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in PARTS]
    except (OSError, ValueError, EOFError):  # not there, not to be read, or damaged
        made = Encoded.of(pairs, tokenizers)
        keep(folder, made)
        return made
    return Encoded(Ragged(*parts[:2]), Ragged(*parts[2:]))


def key(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> str:
    # As JSON, where a tab inside a text is not mistaken for the border between the two sides.
    content = json.dumps([pairs, tokenizers.to_json()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def keep(folder: Path, made: Encoded) -> None:
    """Write the arrays in one move; a cache that cannot be written is no one's mistake."""
    sides = [Ragged.of(side) for side in (made.source, made.target)]
    arrays = [array for side in sides for array in (side.values, side.ends)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What is moved away cannot be cleaned up, nor need it be.
        choices = {"dir": folder.parent, "ignore_cleanup_errors": True}
        with tempfile.TemporaryDirectory(**choices) as temporary:
            for name, array in zip(PARTS, arrays, strict=True):
                np.save(Path(temporary) / f"{name}.npy", array)
            Path(temporary).rename(folder)  # fails harmlessly if another process was first
    except OSError:
        return
