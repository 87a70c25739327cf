"""The vocabulary parameters of a model are exactly those whose size depends on the vocabulary."""

from typing import Any

import pytest

from regard.config import Config
from regard.models import Model, build

SIZES, OTHER_SIZES = (7, 11), (13, 17)


def build_two(
    table: dict[str, Any], sizes: Any, other_sizes: Any, joint: bool
) -> tuple[Model, set[str]]:
    """A model, and the parameters whose shape another vocabulary size changes."""
    model = Config.model_validate({"model": table, "training": {"batching": "random"}}).model
    small, large = (build(model, *pair, joint) for pair in (sizes, other_sizes))
    shapes = {name: p.shape for name, p in large.named_parameters()}
    return small, {name for name, p in small.named_parameters() if p.shape != shapes[name]}


def vocab_names(model: Model, side: str) -> set[str]:
    ids = {id(p) for p in model.vocab_parameters()[side]}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def test_vocabulary_parameters_have_a_row_for_each_token(tables):
    for name, table in tables.items():
        if table["kind"] == "pretrained":  # the checkpoint fixes its vocabulary
            continue
        model, changed = build_two(table, SIZES, OTHER_SIZES, joint=False)
        assert changed == vocab_names(model, "source") | vocab_names(model, "target"), name
        assert not vocab_names(model, "source") & vocab_names(model, "target")
        for side, size in zip(("source", "target"), SIZES, strict=True):
            assert {len(p) for p in model.vocab_parameters()[side]} == {size}


@pytest.mark.parametrize(
    "name", ["gru-2-bidirectional", "transformer-untied", "decoder-only-llama"]
)
def test_a_joint_vocabulary(tables, name):
    model, changed = build_two(tables[name], (7, 7), (13, 13), joint=True)
    assert changed == vocab_names(model, "source") | vocab_names(model, "target")
