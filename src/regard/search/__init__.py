"""Search: from a model's steps to an output. It works with any model behind the interface."""

from regard.search.beam import beam
from regard.search.constrain import Constrain, force_tokens
from regard.search.forced import ScoredPair, token_log_probs
from regard.search.greedy import greedy
from regard.search.hypothesis import Hypothesis
from regard.search.sample import sample
from regard.search.state import watch

__all__ = [
    "Constrain",
    "Hypothesis",
    "ScoredPair",
    "beam",
    "force_tokens",
    "greedy",
    "sample",
    "token_log_probs",
    "watch",
]
