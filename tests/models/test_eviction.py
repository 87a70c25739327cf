"""A sliding window evicts the keys that no later token may attend to, and changes no output."""

import pytest
import torch

from tests.models.stepping import assert_close, run_steps
from tests.models.test_invariants import ForbidHostCopy, ForbidHostSync

SOURCE, TARGET = 11, 17
NAMES = [
    "transformer-window",
    "transformer-window-grouped-alibi",
    "transformer-latent-window",
    "transformer-grouped-dynamic-ntk",
    "decoder-only-window",
    "decoder-only-prefix-window",
]


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(params=[1, 4, 12])
def window(request) -> int:
    return request.param


@pytest.fixture(params=NAMES)
def windowed(request, window, make, tables):
    table = tables[request.param]
    return make(table | {"attention": table["attention"] | {"window": window}})


def cached_source(model) -> int:
    return 0 if hasattr(model, "encoder") else SOURCE


def lengths(state) -> set[int]:
    """The number of cached tokens, which is the same everywhere."""
    masks = [] if state.cache_mask is None else [state.cache_mask]
    tensors = [state.key_position_ids, *masks]
    return {*(cache.length for cache in state.caches), *(x.shape[-1] for x in tensors)}


def test_keys_out_of_reach_are_evicted(windowed, window, example):
    """Between steps w - 1 keys remain: the next token brings its own."""
    state = windowed.init_state(windowed.encode(example.source, example.mask))
    expected = windowed(example.source, example.mask, example.target)
    for t in range(TARGET):
        logits, state = windowed.step(example.target[:, t], state)
        assert_close(logits, expected[:, t])
        assert lengths(state) == {min(cached_source(windowed) + t + 1, window - 1)}


def test_source_out_of_reach_is_evicted(make, tables, window, example):
    table = tables["decoder-only-window"]
    model = make(table | {"attention": table["attention"] | {"window": window}})
    memory = model.encode(example.source, example.mask)
    assert lengths(model.init_state(memory)) == {min(SOURCE, window - 1)}
    assert {cache.length for cache in memory.caches} == {SOURCE}  # it is needed again


def test_a_sequence_read_at_once_is_evicted_too(windowed, window, example):
    expected = windowed(example.source, example.mask, example.target)
    state = windowed.init_state(windowed.encode(example.source, example.mask))
    for part in (slice(0, 6), slice(6, 7), slice(7, 13)):
        features = windowed._decode_target(example.target[:, part], state, need_weights=False)[0]
        assert_close(windowed.project(features), expected[:, part])
        assert lengths(state) == {min(cached_source(windowed) + part.stop, window - 1)}
    assert_close(run_steps(windowed, state, example.target[:, 13:])[0], expected[:, 13:])


def test_all_hypotheses_are_evicted(windowed, window, example):
    """Hypotheses may be expanded twice: each position then has another number of keys."""
    state = windowed.init_state(windowed.encode(example.source, example.mask))
    counts, hypotheses = [1] * cached_source(windowed), example.target[:, None, :0]
    generator = torch.Generator().manual_seed(3)
    for beam, steps in ((1, 2), (2, 3), (6, 4)):
        factor = beam // hypotheses.shape[1]
        state = state.expand(factor)
        hypotheses = hypotheses.repeat_interleave(factor, dim=1)
        for _ in range(steps):
            tokens = torch.randint(1, 19, hypotheses.shape[:2], generator=generator)
            logits, state = windowed.step(tokens.flatten(), state)
            hypotheses, counts = torch.cat([hypotheses, tokens[..., None]], -1), [*counts, beam]
            order = torch.randint(0, beam, tokens.shape, generator=generator)
            state = state.reorder(order)
            assert lengths(state) == {sum(counts[::-1][: window - 1])}
            rows = torch.arange(len(tokens)).repeat_interleave(beam)
            inputs = example.source[rows], example.mask[rows], hypotheses.flatten(0, 1)
            assert_close(logits, windowed(*inputs)[:, -1])
            hypotheses = hypotheses.gather(1, order[..., None].expand_as(hypotheses))


def test_memory_does_not_grow_with_the_output(make, tables):
    """Neither by `cache_bytes`, nor in the buffers behind the keys that are left."""
    model = make(tables["decoder-only-window"])
    source = torch.ones(1, SOURCE, dtype=torch.int64)
    state = model.init_state(model.encode(source, source == 1))
    sizes, allocated = set(), set()
    for _ in range(200):
        _, state = model.step(source[0, :1], state)
        sizes.add(state.cache_bytes())
        allocated.add(state.caches[0].keys.untyped_storage().nbytes())
    assert sizes == {
        2 * 2 * 2 * 3 * 4 * 8
    }  # layers, keys and values, w - 1, heads, head_dim, float64
    assert allocated == {16 * 3 * 4 * 8}  # the smallest buffer


def test_a_reserved_cache_is_a_ring(windowed, window, example):
    """However many tokens space is reserved for, and however often: w slots, and the same outputs."""
    state = windowed.init_state(windowed.encode(example.source, example.mask)).reserve(2)
    expected = windowed(example.source, example.mask, example.target)
    for t in range(TARGET):
        state = state.reserve(3) if t % 2 else state
        logits, state = windowed.step(example.target[:, t], state)
        assert_close(logits, expected[:, t])
        assert max(lengths(state)) <= window
    assert lengths(state) == {window}
    structure, storage = state.structure(), state.key_position_ids.data_ptr()
    _, state = windowed.step(example.target[:, 0], state.reserve(1000))
    assert state.structure() == structure
    assert state.key_position_ids.data_ptr() == storage  # written in place


def test_hypotheses_of_a_ring_may_be_expanded_selected_and_copied(windowed, window, example):
    """At any point of the ring; w slots for each hypothesis."""
    state = windowed.init_state(windowed.encode(example.source, example.mask)).reserve(100)
    hypotheses = example.target[:, None, :0]
    rows = torch.arange(len(example.target))
    generator = torch.Generator().manual_seed(3)
    for beam, steps in ((1, 5), (2, 4), (6, 7)):
        factor = beam // hypotheses.shape[1]
        state = state.expand(factor)
        hypotheses = hypotheses.repeat_interleave(factor, dim=1)
        keep = torch.randperm(len(rows), generator=generator)
        state, hypotheses, rows = state.copy().select(keep), hypotheses[keep], rows[keep]
        for _ in range(steps):
            tokens = torch.randint(1, 19, hypotheses.shape[:2], generator=generator)
            logits, state = windowed.step(tokens.flatten(), state)
            hypotheses = torch.cat([hypotheses, tokens[..., None]], -1)
            order = torch.randint(0, beam, tokens.shape, generator=generator)
            state = state.reorder(order)
            assert lengths(state) == {window * beam}
            repeated = rows.repeat_interleave(beam)
            inputs = example.source[repeated], example.mask[repeated], hypotheses.flatten(0, 1)
            assert_close(logits, windowed(*inputs)[:, -1])
            hypotheses = hypotheses.gather(1, order[..., None].expand_as(hypotheses))


def test_a_score_by_index_keeps_all_keys(make, example):
    """Without the older keys, the others would change their index."""
    model = make("transformer-window-location")
    state = model.init_state(model.encode(example.source, example.mask))
    assert lengths(run_steps(model, state, example.target)[1]) == {TARGET}


def test_models_without_a_window_keep_all_keys(make, example):
    for name, source in (("transformer-scaled-dot", 0), ("decoder-only-scaled-dot", SOURCE)):
        model = make(name)
        state = model.init_state(model.encode(example.source, example.mask))
        assert lengths(run_steps(model, state, example.target)[1]) == {source + TARGET}


@pytest.mark.parametrize("name", NAMES)
def test_eviction_does_not_synchronise_with_the_device(name, make, example):
    model = make(name)
    memory = model.encode(example.source, example.mask)
    with ForbidHostSync(), ForbidHostCopy():
        state = model.init_state(memory)
        for tokens in (example.target[:, t] for t in range(5)):
            _, state = model.step(tokens, state)
