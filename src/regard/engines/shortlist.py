"""A lexical shortlist: for each source token, the target tokens that it may be translated to.

CTranslate2 then multiplies by the rows of the output projection that belong to the candidates of a batch (its
"vocabulary map"). Candidates come from IBM model 1 (Brown et al., 1993) on the training pairs:

    p(t | s) = c(s, t) / sum_t' c(s, t'),    c(s, t) = sum over co-occurrences of p(t | s) / sum_s' p(t | s')

where s' are the tokens of the source, EOS included, which serves as the empty word.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from regard.config import Config
from regard.engines.conversion import token_names
from regard.errors import UserError
from regard.text import corpus
from regard.text.batch import EncodedPairs
from regard.text.cache import encode_cached
from regard.text.tokenizer import TokenizerPair

ITERATIONS = 5
FREQUENT = 700  # target tokens that are candidates for every source
MAX_PAIRS = 100_000  # alignments of more sentences add little and take memory
Array = np.ndarray


@dataclass(frozen=True)
class Shortlist:
    """Candidates: those of each source token, itself in a joint vocabulary, and the most frequent ones."""

    candidates: dict[int, list[int]]
    frequent: list[int]

    def to_vmap(self, tokenizers: TokenizerPair) -> str:
        """CTranslate2's file: a line "source TAB targets" per token; without a source: always candidates."""
        source, target = token_names(tokenizers.source), token_names(tokenizers.target)
        check_names(source)
        check_names(target)
        rows = [("", self.frequent), *((source[s], row) for s, row in self.candidates.items())]
        return "".join(f"{key}\t{' '.join(target[t] for t in row)}\n" for key, row in rows)


def check_names(names: Sequence[str]) -> None:
    """Raise an error if a token contains whitespace, which separates tokens in CTranslate2's file."""
    spaces = [name for name in names if not name or any(character.isspace() for character in name)]
    if spaces:
        raise UserError(
            f"a shortlist needs tokens without spaces, and this vocabulary has {spaces[0]!r}: leave out "
            '--shortlist, or train with tokenizer.kind = "bpe"'
        )


def make_shortlist(settings: Config, tokenizers: TokenizerPair, candidates: int) -> str:
    """CTranslate2's file for a run, from its training data."""
    if settings.model.kind != "transformer":
        raise UserError("--shortlist: CTranslate2 has shortlists for encoder-decoder models only")
    encoded = encode_cached(corpus.load_split(settings.data, "train"), tokenizers)
    return build_shortlist(encoded, tokenizers, candidates, FREQUENT).to_vmap(tokenizers)


def build_shortlist(
    encoded: EncodedPairs, tokenizers: TokenizerPair, candidates: int, frequent: int
) -> Shortlist:
    """The `candidates` most probable translations of each token, and the `frequent` target tokens."""
    some = range(0, len(encoded), max(1, -(-len(encoded) // MAX_PAIRS)))
    source = [np.asarray(encoded.source[row]) for row in some]
    target = [np.asarray(encoded.target[row]) for row in some]
    counts = np.bincount(np.concatenate(target), minlength=tokenizers.target.vocab_size)
    by_source = best_translations(*align(source, target), candidates)
    if tokenizers.joint:  # names and numbers are copied
        for token in range(tokenizers.source.vocab_size):
            by_source.setdefault(token, []).append(token)
    return Shortlist(by_source, np.argsort(-counts, kind="stable")[:frequent].tolist())


def align(
    source: list[Array], target: list[Array], iterations: int = ITERATIONS
) -> tuple[Int[Array, "types 2"], Float[Array, " types"]]:
    """(all pairs (s, t) that co-occur, p(t | s)) of IBM model 1 by expectation maximisation."""
    sizes = [(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    s = np.concatenate([np.tile(s, len(t)) for s, t in zip(source, target, strict=True)])
    t = np.concatenate([np.repeat(t, len(s)) for s, t in zip(source, target, strict=True)])
    # The target position of each co-occurrence.
    positions = np.repeat(np.arange(sum(n for _, n in sizes)), np.repeat(*np.array(sizes).T))
    width = int(t.max()) + 1
    types, index = np.unique(s.astype(np.int64) * width + t, return_inverse=True)
    sources, targets = types // width, types % width
    probabilities = np.ones(len(types))
    for _ in range(iterations):
        weights = probabilities[index]
        totals = np.bincount(positions, weights)
        expected = np.bincount(index, weights / totals[positions])
        probabilities = expected / np.bincount(sources, expected)[sources]
    return np.stack([sources, targets], axis=1), probabilities


def best_translations(
    types: Int[Array, "types 2"], probabilities: Float[Array, " types"], count: int
) -> dict[int, list[int]]:
    """The `count` most probable t of each s."""
    order = np.lexsort((-probabilities, types[:, 0]))
    sources, targets = types[order].T
    starts = np.flatnonzero(np.diff(sources, prepend=-1))
    rows = np.split(targets, starts[1:])
    return {int(sources[i]): row[:count].tolist() for i, row in zip(starts, rows, strict=True)}
