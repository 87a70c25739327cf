"""From a model's steps to an output: search drives any model and never learns which one."""

from regard.search.beam import beam
from regard.search.greedy import greedy
from regard.search.hypothesis import Hypothesis
from regard.search.sample import sample

__all__ = ["Hypothesis", "beam", "greedy", "sample"]
