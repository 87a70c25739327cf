"""What a model says it holds for each token is what grows with the vocabulary, and nothing else."""

from typing import Any

import pytest

from regard.config import Config
from regard.models import Model, build

SIZES, GROWN = (7, 11), (13, 17)


def grows(table: dict[str, Any], sizes: Any, grown: Any, joint: bool) -> tuple[Model, set[str]]:
    """A model, and the parameters that another vocabulary changes."""
    model = Config.model_validate({"model": table}).model
    small, large = (build(model, *each, joint) for each in (sizes, grown))
    shapes = {name: p.shape for name, p in large.named_parameters()}
    return small, {name for name, p in small.named_parameters() if p.shape != shapes[name]}


def names(model: Model, side: str) -> set[str]:
    rows = {id(p) for p in model.vocab_parameters()[side]}
    return {name for name, p in model.named_parameters() if id(p) in rows}


def test_rows_grow_with_their_vocabulary(tables):
    for name, table in tables.items():
        if table["kind"] == "pretrained":  # its vocabulary is its own
            continue
        model, found = grows(table, SIZES, GROWN, joint=False)
        assert found == names(model, "source") | names(model, "target"), name
        assert not names(model, "source") & names(model, "target")
        for side, size in zip(("source", "target"), SIZES, strict=True):
            assert {len(p) for p in model.vocab_parameters()[side]} == {size}


@pytest.mark.parametrize("name", ["gru-2-both", "transformer-untied", "decoder-only-llama"])
def test_the_same_where_both_sides_share_them(tables, name):
    model, found = grows(tables[name], (7, 7), (13, 13), joint=True)
    assert found == names(model, "source") | names(model, "target")
