"""From a model's steps to an output: search drives any model and never learns which one."""

from regard.search.greedy import greedy
from regard.search.hypothesis import Hypothesis

__all__ = ["Hypothesis", "greedy"]
