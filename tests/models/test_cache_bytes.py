"""The bytes of a decoder state: every tensor counts once."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", ["bottleneck-parallel", "recurrent-dot"])
def test_a_tensor_that_occurs_twice_counts_once(name, make, tables, example):
    model = make(tables[name])
    state = model.init_state(model.encode(example.source, example.mask))
    shares = state.keys is state.values
    assert shares == (name == "bottleneck-parallel")
    for record in (state, state.copy(), state.select(torch.arange(5))):
        tensors = [record.layers, record.context, record.values, *([] if shares else [record.keys])]
        assert record.cache_bytes() == sum(x.nbytes for x in tensors)
        assert (record.keys is record.values) == shares


def test_two_halves_of_a_projection_both_count(make, example):
    """Keys and values that were read at once share their storage, but not their place in it."""
    model = make("transformer-scaled-dot")
    state = model.init_state(model.encode(example.source, example.mask))
    keys, values = state.source_keys_values[0]
    assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    per_layer = keys.nbytes + values.nbytes
    assert state.cache_bytes() == 2 * per_layer
