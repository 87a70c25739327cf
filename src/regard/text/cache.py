"""Text is tokenised once: the ids are cached on disk under a hash of the text and the tokenizers."""

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np

from regard.text import datasets
from regard.text.batch import EncodedPairs, RaggedArray
from regard.text.tokenizer import TokenizerPair

ARRAYS = ("source.values", "source.ends", "target.values", "target.ends")


def encode_cached(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> EncodedPairs:
    """`EncodedPairs.from_pairs`, memory-mapped from the cache if these pairs were tokenised before."""
    folder = datasets.cache_dir() / "tokenised" / cache_key(pairs, tokenizers)
    try:
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS]
    except (OSError, ValueError, EOFError):  # missing, unreadable or damaged
        encoded = EncodedPairs.from_pairs(pairs, tokenizers)
        save(folder, encoded)
        return encoded
    return EncodedPairs(RaggedArray(*arrays[:2]), RaggedArray(*arrays[2:]))


def cache_key(pairs: list[tuple[str, str]], tokenizers: TokenizerPair) -> str:
    # JSON, so that a tab or newline inside a text is not mistaken for a separator.
    content = json.dumps([pairs, tokenizers.to_json()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def save(folder: Path, encoded: EncodedPairs) -> None:
    """Write the arrays atomically; a cache that cannot be written is not an error."""
    sides = [RaggedArray.from_rows(side) for side in (encoded.source, encoded.target)]
    arrays = [array for side in sides for array in (side.values, side.offsets)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # After the rename there is nothing left to clean up, which must not raise.
        options = {"dir": folder.parent, "ignore_cleanup_errors": True}
        with tempfile.TemporaryDirectory(**options) as temporary:
            for name, array in zip(ARRAYS, arrays, strict=True):
                np.save(Path(temporary) / f"{name}.npy", array)
            Path(temporary).rename(folder)  # fails harmlessly if another process was first
    except OSError:
        return
