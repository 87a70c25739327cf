"""Traced steps of one sentence equal the model's own, for every model and every int8 kernel."""

import copy
import pickle

import pytest
import torch

from regard.models import int8, pack_weights, quantize_int8
from regard.models.int8_kernels import KERNELS
from regard.models.int8_probe import is_exact
from regard.models.intervene import uniform_attention
from regard.search import beam, greedy, traced
from regard.search.traced import TracedSteps, trace_steps
from tests.models.conftest import LENGTHS
from tests.models.stepping import assert_close, run_steps
from tests.models.test_int8 import make as make_wide

ROWS = [row for row, length in enumerate(LENGTHS) if length > 5]
ONE = torch.tensor([9])  # the maximum length of one sentence


@pytest.fixture(autouse=True)
def trace_at_once(monkeypatch) -> None:
    """Trace the second step of a sentence, and reserve again in the middle of it."""
    monkeypatch.setattr(traced, "PAYS_AFTER", 0)
    monkeypatch.setattr(traced, "RESERVED", 3)


@torch.inference_mode()
def test_traced_steps_equal_those_of_the_model(named_model, example):
    name, model = named_model
    steps = TracedSteps(model)
    for row in ROWS:
        source, mask, target = example.unpadded(row)
        memory, target = model.encode(source, mask), target[:, :7]
        expected, _ = run_steps(model, model.init_state(memory), target)
        logits, _ = run_steps(steps, steps.init_state(memory), target)
        assert_close(logits, expected)
    if name.endswith("dynamic-ntk"):
        assert steps.reason == "how its keys are rotated depends on their number"
    elif name.startswith("pretrained"):
        assert steps.reason == "the decoder state changes its shape at every step"
    else:
        assert steps.reason is None
        assert list(steps.traces) == [1]


def search(model, source, width):
    """(ids, score) of the output."""
    memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
    best = greedy(model, memory, ONE)[0] if width == 1 else beam(model, memory, ONE, width)[0][0]
    return best.ids, best.score


def search_without_traces(model, source, width):
    return search(Untraced(model), source, width)


class Untraced:
    """A model that is not a `Model`, and so is never traced."""

    def __init__(self, model):
        self.encode, self.init_state, self.step = model.encode, model.init_state, model.step


def assert_search_equals(model, lengths=(5, 2, 8), widths=(1, 3)):
    with torch.inference_mode():
        for length in lengths:
            source = torch.randint(3, 17, (1, length))
            for width in widths:
                ids, score = search(model, source, width)
                expected, expected_score = search_without_traces(model, source, width)
                assert ids == expected
                assert score == pytest.approx(expected_score, abs=1e-4)


def test_search_equals_search_without_traces(family):
    assert_search_equals(family)
    assert set(vars(family)["traced_steps"].traces) <= {1, 3}


def test_packed_weights_are_traced():
    model = pack_weights(make_wide("transformer"))
    assert_search_equals(model)
    assert vars(model)["traced_steps"].reason is None


@pytest.mark.parametrize("name", KERNELS)
def test_int8_kernels_are_traced(name, monkeypatch):
    kernel = KERNELS[name]
    if not kernel.is_available() or not is_exact(kernel):
        pytest.skip(f"{name} is missing or not exact here")
    monkeypatch.setattr(int8, "find_kernel", lambda: kernel)
    model = quantize_int8(make_wide("transformer"))
    source, target = torch.randint(3, 300, (1, 7)), torch.randint(3, 300, (1, 6))
    with torch.inference_mode():
        memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        steps = TracedSteps(model)
        expected, _ = run_steps(model, model.init_state(memory), target)
        logits, _ = run_steps(steps, steps.init_state(memory), target)
    assert steps.reason is None
    # A rounding error of float32 can move an activation to the next integer.
    assert (logits - expected).norm() / expected.norm() < 0.01


def test_only_one_sentence_of_one_of_our_models_is_traced(family):
    assert isinstance(trace_steps(family, ONE), TracedSteps)
    assert trace_steps(family, ONE) is trace_steps(family, ONE)
    assert trace_steps(family, torch.tensor([9, 9])) is family
    assert trace_steps(Untraced(family), ONE).step == family.step
    handle = family.register_forward_hook(lambda *_: None)
    assert trace_steps(family, ONE) is family
    handle.remove()
    assert trace_steps(family, ONE.to("meta")) is family


def test_a_changed_model_is_traced_again(make):
    model = make("transformer-position-rotary")
    first = trace_steps(model, ONE)
    with uniform_attention(model.attention_layers()["cross"]):
        patched = trace_steps(model, ONE)
        assert patched is not first
        assert_search_equals(model, lengths=(5,))
    assert trace_steps(model, ONE) is not patched
    assert_search_equals(model, lengths=(5,))
    before = trace_steps(model, ONE)
    with torch.no_grad():
        model.decoder[0].feed_forward.up.weight.mul_(2)
    assert trace_steps(model, ONE) is not before
    before = trace_steps(model, ONE)
    pack_weights(model)
    assert trace_steps(model, ONE) is not before


def test_a_copied_model_has_its_own_traces(make):
    model = make("transformer-position-rotary")
    assert_search_equals(model, lengths=(5,))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert vars(other)["traced_steps"] is None
        assert_search_equals(other, lengths=(5,))
        assert vars(other)["traced_steps"].model is other


def test_parameters_require_gradients_after_a_trace(make):
    model = make("transformer-position-rotary")
    model.decoder[0].feed_forward.up.weight.requires_grad = False
    before = [parameter.requires_grad for parameter in model.parameters()]
    assert_search_equals(model, lengths=(5,))
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert len(set(before)) == 2


def test_few_steps_are_not_traced(make, monkeypatch):
    monkeypatch.setattr(traced, "PAYS_AFTER", 20)
    model = make("transformer-position-rotary")
    target = torch.randint(3, 17, (1, 12))
    steps = TracedSteps(model)
    with torch.inference_mode():
        memory = model.encode(target, torch.ones_like(target, dtype=torch.bool))
        run_steps(steps, steps.init_state(memory), target)
        assert steps.traces == {}
        run_steps(steps, steps.init_state(memory), target)
    assert list(steps.traces) == [1]


class Random(torch.nn.Module):
    """A step that a trace cannot repeat: it depends on a number in Python."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def __call__(self, x):
        self.calls += 1
        return self.model(x) + self.calls


def test_a_step_that_a_trace_cannot_repeat_is_not_traced(make):
    model = make("transformer-position-rotary")
    model.decoder_norm = Random(model.decoder_norm)
    source = torch.randint(3, 17, (1, 5))
    with torch.inference_mode():
        search(model, source, 3)
    assert "depends on more than the values" in vars(model)["traced_steps"].reason
