"""Invariants of every model, whatever its options."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.stepping import assert_close, run_steps


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_padding_does_not_change_the_output(model, example):
    memory = model.encode(example.source, example.mask)
    logits = model(example.source, example.mask, example.target)
    for row in (0, 2, 3):  # of 11, 7 and 1 tokens
        length = example.lengths[row]
        source, mask, target = example.unpadded(row)
        unpadded = model.encode(source, mask)
        assert_close(memory.states[row : row + 1, :length], unpadded.states)
        assert_close(logits[row : row + 1], model.project(model.features(unpadded, target)))


def move_padding(example):
    """The same sentences with the padding on the left, or between the tokens, in every other row."""
    mask = torch.arange(11) >= 11 - torch.tensor(example.lengths)[:, None]
    shuffled = example.mask[:, torch.randperm(11, generator=torch.Generator().manual_seed(6))]
    mask[1::2] = shuffled[1::2]
    source = torch.full_like(example.source, 21)
    source[mask] = example.source[example.mask]
    return source, mask


def test_padding_may_be_anywhere(model, example):
    target, (source, mask) = example.target[:, :5], move_padding(example)
    assert_close(model(source, mask, target), model(example.source, example.mask, target))
    expected = model.attention_weights(example.source, example.mask, target)
    for mechanism, weights in model.attention_weights(source, mask, target).items():
        for row, (moved, before) in enumerate(zip(mask, example.mask, strict=True)):
            new, old = weights[row], expected[mechanism][row]
            if mechanism != "decoder":  # the keys are source tokens
                assert (new[..., ~moved] == 0).all()
                new, old = new[..., moved], old[..., before]
            if mechanism == "encoder":
                new, old = new[:, :, moved], old[:, :, before]
            assert_close(new, old)


def test_token_ids_of_padding_do_not_matter(model, example):
    garbage = torch.where(example.mask, example.source, 22)
    longer = torch.nn.functional.pad(garbage, (0, 3), value=21)
    mask = torch.nn.functional.pad(example.mask, (0, 3), value=False)
    expected = model(example.source, example.mask, example.target)
    assert_close(model(longer, mask, example.target), expected)


def test_batch_size_and_order_do_not_change_the_output(model, example):
    logits = model(example.source, example.mask, example.target)
    rows = torch.tensor([4, 0, 2, 1, 3, 0])
    reordered = model(example.source[rows], example.mask[rows], example.target[rows])
    assert_close(reordered, logits[rows])
    one = slice(2, 3)
    single = model(example.source[one], example.mask[one], example.target[one])
    assert_close(single, logits[one])


def test_batch_size_changes_little_in_float32(family, example):
    model = family.float()
    logits = model(example.source, example.mask, example.target)
    for row in range(len(example.lengths)):
        single = model(*example.unpadded(row))
        torch.testing.assert_close(logits[row : row + 1], single, atol=1e-5, rtol=0)


def test_future_tokens_do_not_affect_earlier_outputs(model, example):
    positions = (0, 1, 9, 16)
    changed = example.target.repeat(1 + len(positions), 1, 1)  # the first is the original
    for target, t in zip(changed[1:], positions, strict=True):
        target[:, t] = target[:, t] % 18 + 1
    rows = torch.arange(len(example.lengths)).repeat(len(changed))
    logits = model(example.source[rows], example.mask[rows], changed.flatten(0, 1))
    before, *others = logits.unflatten(0, changed.shape[:2])
    for after, t in zip(others, positions, strict=True):
        assert_close(after[:, :t], before[:, :t])
        assert (after[:, t] - before[:, t]).abs().amax(-1).min() > 1e-6


def test_output_depends_on_the_source(named_model, example):
    name, model = named_model
    before = model(example.source, example.mask, example.target)
    after = model(example.source % 22 + 1, example.mask, example.target)
    if name in ("transformer-dummy", "decoder-only-dummy"):  # only attention reaches the source
        assert_close(after, before)
    else:
        assert (after - before).abs().amax((1, 2)).min() > 1e-6


def test_stepping_equals_the_full_forward_pass(model, example):
    memory = model.encode(example.source, example.mask)
    logits, _ = run_steps(model, model.init_state(memory), example.target)
    assert_close(logits, model(example.source, example.mask, example.target))


def test_dropout_is_random_in_training_mode_only(family, example):
    inputs = (example.source, example.mask, example.target)
    assert torch.equal(family(*inputs), family(*inputs))
    family.train()
    assert not torch.equal(family(*inputs), family(*inputs))


class ForbidHostCopy(TorchFunctionMode):
    """Raise where values are copied to the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu):
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


class ForbidHostSync(TorchDispatchMode):
    """Raise at operations whose result, or its shape, the host would have to wait for."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        depends_on_values = torch.Tag.data_dependent_output in function.tags
        if torch.Tag.dynamic_output_shape in function.tags:
            is_index = function is torch.ops.aten.index.Tensor
            depends_on_values = not is_index or any(
                index is not None and index.dtype == torch.bool for index in args[1]
            )
        if depends_on_values:
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


def test_host_sync_is_noticed():
    x = torch.tensor([1.0, 0.0])
    with ForbidHostSync(), ForbidHostCopy():
        x[torch.tensor([1, 0])] * 2
        for sync in (x.sum().item, x.nonzero, x.tolist, lambda: x[x > 0], lambda: bool(x[0] > 0)):
            with pytest.raises(RuntimeError, match="waits for the device"):
                sync()


def test_training_does_not_synchronise_with_the_device(named_model, example):
    name, model = named_model
    if not model.supports_cuda_graphs:
        pytest.skip("it declares that it cannot be captured as a CUDA graph")
    if "learned" in name:
        pytest.skip("on a CPU it checks that its table is long enough; on a GPU it does not")
    model = copy.deepcopy(model).train()
    with ForbidHostSync(), ForbidHostCopy(), torch.enable_grad():
        features = model.features(model.encode(example.source, example.mask), example.target)
        features.sum().backward()
