"""Training steps: equal for exact and padded batches, eager and replayed from CUDA graphs."""

import contextlib
import copy
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models import build
from regard.models.dropout import Dropout
from regard.models.weights import state_tensors
from regard.text.batch import BatchSampler, BatchSpec, DeviceDataset, EncodedPairs
from regard.training import checkpoint, step
from regard.training.step import TrainStep, copy_with_dtype, update_ema
from regard.training.writer import Writer

VOCAB = 13
FORBID_HOST_SYNC = step.forbid_host_sync  # before a fixture replaces it


@pytest.fixture
def data() -> EncodedPairs:
    random = torch.Generator().manual_seed(7)

    def row() -> list[int]:
        length = int(torch.randint(1, 13, (), generator=random))
        return torch.randint(4, VOCAB, (length,), generator=random).tolist()

    return EncodedPairs([[*row(), 2] for _ in range(29)], [row() for _ in range(29)])


@pytest.fixture
def make(tiny, data):
    """make(family, graphs=..., **training): a TrainStep without dropout, always the same."""

    def make_step(
        family: str, graphs: bool = False, log: list | None = None, **training: Any
    ) -> TrainStep:
        config = tiny(family, **training)
        torch.manual_seed(3)
        model = build(config.model.model_copy(update={"dropout": 0.0}), VOCAB, VOCAB, False)
        print_line = (log if log is not None else []).append
        dataset = DeviceDataset(data, "cpu")
        train_step = TrainStep(model, config.training, dataset, torch.float32, False, print_line)
        train_step.cuda_graphs = graphs  # set later: the constructor would need a GPU
        return train_step

    return make_step


def run_steps(train_step: TrainStep, batches: list[BatchSpec]) -> dict[str, torch.Tensor]:
    for number, batch in enumerate(batches):
        train_step([batch], 0.01 * (number + 1), number)
    return state_tensors(train_step.model)


def assert_close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)


class FakeGraph:
    """A CapturedStep without a GPU: capturing runs nothing; a replay runs the step with the current
    row numbers and learning rate.
    """

    count = 0

    def __init__(self, step, inputs, pool) -> None:
        self.inputs, self.step = [tensor.clone() for tensor in inputs], step
        type(self).count += 1

    def replay(self, inputs) -> None:
        for captured, tensor in zip(self.inputs, inputs, strict=True):
            captured.copy_(tensor)
        self.step(*self.inputs)


def test_padded_batches_give_the_same_weights(make, data, family: str) -> None:
    rows = [list(range(start, min(start + 8, 29))) for start in range(0, 29, 8)]
    exact = [BatchSampler(data, 10**6, 8, seed=1)._exact_spec(part) for part in rows]
    padded = [BatchSpec(part + [29] * (11 - len(part)), 16, 19) for part in rows]
    assert_close(run_steps(make(family), exact), run_steps(make(family), padded))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(step, "forbid_host_sync", contextlib.nullcontext)


@pytest.mark.parametrize("r_drop", [0.0, 2.5])
def test_replayed_steps_give_the_same_weights(
    make, data, family: str, monkeypatch, r_drop: float
) -> None:
    monkeypatch.setattr(step, "CapturedStep", FakeGraph)
    monkeypatch.setattr(FakeGraph, "count", 0)
    sampler = BatchSampler(data, 40, 4, seed=1, bucket_shapes=2)
    batches = [batch for epoch in range(3) for batch in sampler.epoch(epoch)]
    replayed = make(family, graphs=True, ema_decay=0.9, r_drop=r_drop)
    eager = make(family, ema_decay=0.9, r_drop=r_drop)
    assert_close(run_steps(eager, batches), run_steps(replayed, batches))
    assert_close(state_tensors(eager.ema_model), state_tensors(replayed.ema_model))
    assert replayed.mean_loss() == pytest.approx(eager.mean_loss())
    shapes = {(len(batch.rows), batch.source_length) for batch in batches}
    assert FakeGraph.count == len(shapes) == 2


def test_host_sync_turns_graphs_off(make, data, monkeypatch) -> None:
    """A model that reads a number from the GPU is detected before anything is captured."""
    modes: list[str] = []
    monkeypatch.setattr(step, "forbid_host_sync", FORBID_HOST_SYNC)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    original = step.objective

    def synchronize(*args: Any) -> torch.Tensor:
        if modes and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation\nand more")
        return original(*args)

    monkeypatch.setattr(step, "objective", synchronize)
    log: list[str] = []
    batches = BatchSampler(data, 40, 5, seed=1, bucket_shapes=2).epoch(0)
    result = run_steps(make("recurrent", graphs=True, log=log), batches)
    assert_close(run_steps(make("recurrent"), batches), result)
    [line] = log
    assert "CUDA graphs are off" in line
    assert line.endswith("(called a synchronizing CUDA operation)")
    assert modes == ["error", "default"]


def test_other_errors_are_not_reported_as_host_sync(make, data, monkeypatch) -> None:
    monkeypatch.setattr(step, "forbid_host_sync", FORBID_HOST_SYNC)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)

    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(step, "objective", broken)
    batches = BatchSampler(data, 40, 5, seed=1, bucket_shapes=2).epoch(0)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run_steps(make("recurrent", graphs=True), batches)


class BrokenGraph:
    """A CUDA graph whose capture fails at the end."""

    def capture_begin(self, pool: Any) -> None: ...

    def capture_end(self) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_failed_capture_says_what_to_do(make, data, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", BrokenGraph)
    batches = BatchSampler(data, 40, 5, seed=1, bucket_shapes=1).epoch(0)
    message = r"\(operation not permitted when stream is capturing\).*training\.cuda_graphs=false"
    with pytest.raises(UserError, match=message):
        run_steps(make("recurrent", graphs=True), batches)


def test_step_equals_plain_pytorch(make, data, family: str) -> None:
    """The same as loss.backward, clip_grad_norm_ and AdamW."""
    train_step = make(family, label_smoothing=0.1, grad_clip=0.05)
    other = copy.deepcopy(train_step.model)
    optimizer = step.build_optimizer(other, train_step.settings)
    spec = BatchSampler(data, 10**6, 29, seed=1).epoch(0)[0]
    for number in range(3):
        train_step([spec], 0.01, number)
        batch = data.batch(spec.rows)
        logits = other(batch.source, batch.source_mask, batch.target)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=0, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        optimizer.param_groups[0]["lr"].fill_(0.01)
        optimizer.step()
    assert_close(state_tensors(other), state_tensors(train_step.model))


def test_ema(make, data) -> None:
    train_step = make("recurrent", ema_decay=0.5)
    batches = BatchSampler(data, 40, 5, seed=1).epoch(0)
    expected = {name: tensor.clone() for name, tensor in state_tensors(train_step.model).items()}
    for number, batch in enumerate(batches):
        train_step([batch], 0.01, number)
        decay = min(0.5, (1 + number) / (10 + number))
        for name, tensor in state_tensors(train_step.model).items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor
        assert_close(expected, state_tensors(train_step.ema_model))
    assert (plain := make("recurrent")).ema_model is plain.model


def test_update_ema() -> None:
    averages = [torch.tensor([1.0, 3.0]), torch.tensor(5.0)]
    update_ema(averages, [torch.tensor([2.0, 3.0]), torch.tensor(9.0)], torch.tensor(0.25))
    assert [average.tolist() for average in averages] == [[1.25, 3.0], 6.0]


def test_unused_parameter_does_not_change(tiny, data) -> None:
    config = tiny("recurrent")
    model = build(config.model, VOCAB, VOCAB, False)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    dataset = DeviceDataset(data, "cpu")
    train_step = TrainStep(model, config.training, dataset, torch.float32, False, print)
    run_steps(train_step, BatchSampler(data, 40, 5, seed=1).epoch(0))
    assert state_tensors(model)["unused"].tolist() == [1.0, 1.0, 1.0]


# --- gradient accumulation ------------------------------------------------------------------------


def test_accumulated_batches_equal_one_large_batch(make, data, family: str) -> None:
    """Every token counts the same: batches of different sizes, and a last step with fewer of them."""
    random = torch.randperm(29, generator=torch.Generator().manual_seed(1)).tolist()
    small = [[random[:3], random[3:14], random[14:15]], [random[15:22], random[22:]]]
    sampler = BatchSampler(data, 10**6, 29, seed=1)
    accumulated = make(family, accumulation_steps=3, ema_decay=0.9, label_smoothing=0.1)
    whole = make(family, ema_decay=0.9, label_smoothing=0.1)
    for number, rows in enumerate(2 * small):
        accumulated([sampler._exact_spec(part) for part in rows], 0.01, number)
        whole([sampler._exact_spec([row for part in rows for row in part])], 0.01, number)
        assert accumulated.mean_loss() == pytest.approx(whole.mean_loss(), rel=1e-5)
    assert_close(state_tensors(whole.model), state_tensors(accumulated.model))
    assert_close(state_tensors(whole.ema_model), state_tensors(accumulated.ema_model))


def test_r_drop_with_accumulation(make, data, family: str, monkeypatch) -> None:
    """Batches of different sizes, in two passes that differ in a known way, equal one large batch."""

    def perturb(self: Dropout, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2)
        return torch.cat([first, 0.7 * second])

    monkeypatch.setattr(Dropout, "forward", perturb)
    rows = [[0, 1, 2], list(range(3, 20)), list(range(20, 29))]
    sampler = BatchSampler(data, 10**6, 29, seed=1)
    settings = {"r_drop": 2.5, "label_smoothing": 0.1}
    whole, without = make(family, **settings), make(family, **settings | {"r_drop": 1e-9})
    accumulated = make(family, accumulation_steps=3, **settings)
    for number in range(3):
        accumulated([sampler._exact_spec(part) for part in rows], 0.01, number)
        for train_step in (whole, without):
            train_step([sampler._exact_spec([row for part in rows for row in part])], 0.01, number)
        assert accumulated.mean_loss() == pytest.approx(whole.mean_loss(), rel=1e-5)
    assert_close(state_tensors(whole.model), state_tensors(accumulated.model))
    other = state_tensors(without.model)  # the divergence matters
    assert any(not torch.allclose(x, other[k]) for k, x in state_tensors(whole.model).items())


def test_accumulation_with_graphs(make, data, family: str, monkeypatch) -> None:
    """One graph for each shape, which adds up gradients, and one for the update."""
    monkeypatch.setattr(step, "CapturedStep", FakeGraph)
    sampler = BatchSampler(data, 40, 4, seed=1, bucket_shapes=2)
    batches = [batch for epoch in range(2) for batch in sampler.epoch(epoch)]
    eager, replayed = (make(family, graphs, accumulation_steps=3) for graphs in (False, True))
    for train_step in (eager, replayed):
        for number, start in enumerate(range(0, len(batches), 3)):
            train_step(batches[start : start + 3], 0.01 * (number + 1), number)
    assert_close(state_tensors(eager.model), state_tensors(replayed.model))
    assert replayed.mean_loss() == pytest.approx(eager.mean_loss())
    assert len(replayed.captured_steps) == 3
    assert "update" in replayed.captured_steps


def test_unused_parameter_does_not_change_with_accumulation(make, data) -> None:
    """It has no gradient, not a gradient of 0, to which weight decay would apply."""
    train_step = make("recurrent", accumulation_steps=2)
    train_step.model.register_parameter("unused", torch.nn.Parameter(torch.ones(3, 5)))
    train_step = TrainStep(
        train_step.model, train_step.settings, train_step.data, torch.float32, False, print
    )
    train_step(BatchSampler(data, 40, 5, seed=1).epoch(0)[:2], 0.1, 0)
    assert bool((state_tensors(train_step.model)["unused"] == 1).all())


# --- loss scaling ---------------------------------------------------------------------------------


def scale_loss(train_step: TrainStep, **options: Any) -> TrainStep:
    """The loss scaling of float16, in float32: float16 is for GPUs."""
    train_step.scaler = torch.amp.GradScaler("cpu", **options)
    return train_step


@pytest.mark.parametrize(("count", "r_drop"), [(1, 0.0), (2, 0.0), (1, 2.5)])
def test_scaled_training_equals_unscaled(make, data, family: str, count: int, r_drop) -> None:
    """Bit for bit: a power of two changes no digit, and the scale grows every third step."""
    batches = BatchSampler(data, 40, 5, seed=1).epoch(0)[:8]
    options = {"label_smoothing": 0.1, "ema_decay": 0.9, "accumulation_steps": count}
    options |= {"r_drop": r_drop}
    plain, scaled = make(family, **options), make(family, **options)
    scale_loss(scaled, init_scale=2.0**10, growth_interval=3)
    for train_step in (plain, scaled):
        for start in range(0, len(batches), count):
            train_step(batches[start : start + count], 0.01, start)
    assert scaled.scaler.get_scale() == 2.0 ** (10 + 8 // count // 3)
    assert plain.mean_loss() == scaled.mean_loss()
    for one, two in ((plain.model, scaled.model), (plain.ema_model, scaled.ema_model)):
        for name, value in state_tensors(one).items():
            assert torch.equal(value, state_tensors(two)[name]), name


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("count", [1, 2])
def test_step_with_infinite_gradients_is_skipped(make, data, monkeypatch, count, value) -> None:
    """It changes no weight and no optimizer state, halves the scale, and restarts the growth."""
    train_step = scale_loss(
        make("transformer", accumulation_steps=count), init_scale=64.0, growth_interval=3
    )
    batches = BatchSampler(data, 40, 5, seed=1).epoch(0)[:count]
    for number in range(2):
        train_step(batches, 0.01, number)
    before = copy.deepcopy((state_tensors(train_step.model), train_step.optimizer.state_dict()))
    original = step.cast_gradients

    def overflow(parameters: Any, gradients: Any) -> Any:
        gradients = original(parameters, gradients)
        gradients[3].view(-1)[0] = value
        return gradients

    with monkeypatch.context() as patch:
        patch.setattr(step, "cast_gradients", overflow)
        train_step(batches, 0.01, 2)
    after = state_tensors(train_step.model), train_step.optimizer.state_dict()
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    scales = [train_step.scaler.get_scale()]
    for number in range(3):
        train_step(batches, 0.01, number)
        scales.append(train_step.scaler.get_scale())
    assert scales == [32.0, 32.0, 32.0, 64.0]
    assert not torch.equal(
        before[0]["source_embedding.weight"], after[0]["source_embedding.weight"]
    )


def test_scale_that_keeps_falling_is_an_error(make, data, monkeypatch) -> None:
    train_step = scale_loss(make("recurrent"), init_scale=2.0**-8)
    original = step.cast_gradients
    monkeypatch.setattr(
        step, "cast_gradients", lambda p, g: [x * float("nan") for x in original(p, g)]
    )
    batch = BatchSampler(data, 40, 5, seed=1).epoch(0)[:1]
    for number in range(2):
        train_step(batch, 0.01, number)
        train_step.mean_loss()
    train_step(batch, 0.01, 2)
    with pytest.raises(UserError, match=r"not finite in float16.*training\.precision=float32"):
        train_step.mean_loss()


def test_loss_scale_is_part_of_the_checkpoint(make, data, tmp_path) -> None:
    """Scale and growth counter: the resumed run grows the scale at the same step."""
    batches = BatchSampler(data, 40, 5, seed=1).epoch(0)
    options = {"init_scale": 8.0, "growth_interval": 3}
    saved = scale_loss(make("recurrent"), **options)
    for number in range(4):
        saved([batches[number]], 0.01, number)
    checkpoint.save(tmp_path, checkpoint.Progress(step=4), saved, Writer(saved.device))
    restored = scale_loss(make("recurrent"))
    assert checkpoint.restore(tmp_path, restored).step == 4
    for train_step in (saved, restored):
        scales = []
        for number in range(4, 7):
            train_step([batches[number]], 0.01, number)
            scales.append(train_step.scaler.get_scale())
        assert scales == [16.0, 32.0, 32.0]
    for name, value in state_tensors(saved.model).items():
        assert torch.equal(value, state_tensors(restored.model)[name])


def test_loss_is_scaled_in_float16_only(make, data) -> None:
    plain = make("recurrent")
    arguments = (plain.model, plain.settings, plain.data)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        train_step = TrainStep(*arguments, dtype, False, print)
        assert train_step.scaler.is_enabled() == (dtype == torch.float16)
        assert bool(train_step.extra_state()) == (dtype == torch.float16)
        train_step.load_extra_state({})  # of a run in another precision


# --- precision ------------------------------------------------------------------------------------


def test_copy_with_dtype_casts_parameters_and_not_buffers(tiny) -> None:
    table = tiny("transformer").model
    sinusoidal = type(table).model_validate(table.model_dump() | {"position": "sinusoidal"})
    model = build(sinusoidal, VOCAB, VOCAB, False)
    half = copy_with_dtype(model, torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in half.buffers()} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_sync_compute_model(tiny, data) -> None:
    config = tiny("recurrent")
    model = build(config.model, VOCAB, VOCAB, False)
    dataset = DeviceDataset(data, "cpu")
    train_step = TrainStep(model, config.training, dataset, torch.bfloat16, False, print)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.5)
    train_step.sync_compute_model()
    assert all(bool((p == 1.5).all()) for p in train_step.compute_model.parameters())


def test_gradients_have_the_dtype_of_the_parameters() -> None:
    parameters = [torch.ones(2), torch.ones(3), torch.ones(1)]
    gradients = [torch.ones(2).bfloat16(), None, torch.full((1,), 2.0)]
    cast = step.cast_gradients(parameters, gradients)
    assert [g if g is None else g.tolist() for g in cast] == [[1, 1], None, [2]]
    assert cast[0] is not None
    assert cast[0].dtype == torch.float32
    assert cast[2] is gradients[2]


def test_gradients_have_the_strides_of_the_parameters() -> None:
    """Of a parameter that is used transposed, a gradient may come transposed."""
    parameter, gradient = torch.zeros(5, 3), torch.arange(15.0).view(3, 5).t()
    [cast] = step.cast_gradients([parameter], [gradient])
    assert cast is not None
    assert cast.stride() == parameter.stride()
    assert torch.equal(cast, gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_parameters_do_not_change(make, data, dtype) -> None:
    """Also if a copy of the model computes."""
    batches = BatchSampler(data, 10**6, 8, seed=1).epoch(0)
    original = make("transformer", ema_decay=0.5)
    frozen = {"source_embedding.weight", "encoder.0.feed_forward.up.weight", "decoder_norm.bias"}
    for name, parameter in original.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    before = copy.deepcopy(state_tensors(original.model))
    train_step = TrainStep(original.model, original.settings, original.data, dtype, False, print)
    run_steps(train_step, batches)
    for name, value in state_tensors(train_step.model).items():
        assert torch.equal(value, before[name]) == (name in frozen), name
    for name, value in state_tensors(train_step.compute_model).items():
        torch.testing.assert_close(value.float(), state_tensors(train_step.model)[name])
    for name, value in state_tensors(train_step.ema_model).items():
        assert torch.equal(value, before[name]) == (name in frozen), name
    assert train_step.model.trainable_count == train_step.model.parameter_count - sum(
        before[name].numel() for name in frozen
    )
    optimized = {id(p) for group in train_step.optimizer.param_groups for p in group["params"]}
    assert len(optimized) == len(before) - len(frozen)
