"""One step of training: the same whether batches are exact or filled up, plain or replayed."""

import contextlib
import copy
import subprocess
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models import build
from regard.models.weights import state_tensors
from regard.text.batch import BatchSampler, BatchSpec, DeviceDataset, EncodedPairs
from regard.training import run, update
from regard.training.update import Update, in_precision, move_towards

VOCAB = 13
WATCH = update.no_waiting  # before a fixture takes it away


@pytest.fixture
def data() -> EncodedPairs:
    random = torch.Generator().manual_seed(7)

    def row() -> list[int]:
        length = int(torch.randint(1, 13, (), generator=random))
        return torch.randint(4, VOCAB, (length,), generator=random).tolist()

    return EncodedPairs([[*row(), 2] for _ in range(29)], [row() for _ in range(29)])


@pytest.fixture
def make(tiny, data):
    """make(family, graphs=..., **training): an Update without dropout, always the same."""

    def go(family: str, graphs: bool = False, said: list | None = None, **training: Any) -> Update:
        config = tiny(family, **training)
        torch.manual_seed(3)
        model = build(config.model.model_copy(update={"dropout": 0.0}), VOCAB, VOCAB, False)
        say = (said if said is not None else []).append
        # No GPU is needed to make an Update: only its graphs are, and those are stood in for.
        made = Update(model, config.training, DeviceDataset(data, "cpu"), torch.float32, False, say)
        made.graphs = graphs
        return made

    return go


def learn(made: Update, cuts: list[BatchSpec]) -> dict[str, torch.Tensor]:
    for step, cut in enumerate(cuts):
        made(cut, 0.01 * (step + 1), step)
    return state_tensors(made.model)


def close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)


class Tape:
    """Stands in for a CUDA graph: recording runs nothing; a replay does what was recorded, on the
    row numbers and the rate that lie in place then.
    """

    made = 0

    def __init__(self, rows, learn, pool) -> None:
        self.rows, self.learn = rows.clone(), learn
        type(self).made += 1

    def replay(self, rows) -> None:
        self.rows.copy_(rows)
        self.learn(self.rows)


def test_a_filled_up_batch_teaches_the_same(make, data, family: str) -> None:
    rows = [list(range(start, min(start + 8, 29))) for start in range(0, 29, 8)]
    exact = [BatchSampler(data, 10**6, 8, seed=1)._exact_spec(part) for part in rows]
    filled = [BatchSpec(part + [29] * (11 - len(part)), 16, 19) for part in rows]
    close(learn(make(family), exact), learn(make(family), filled))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch) -> None:
    """What watches the GPU has nothing to watch here."""
    monkeypatch.setattr(update, "no_waiting", contextlib.nullcontext)


def test_replays_teach_the_same(make, data, family: str, monkeypatch) -> None:
    monkeypatch.setattr(update, "Recording", Tape)
    monkeypatch.setattr(Tape, "made", 0)
    batches = BatchSampler(data, 40, 4, seed=1, bucket_shapes=2)
    cuts = [cut for epoch in range(3) for cut in batches.epoch(epoch)]
    replayed = make(family, graphs=True, ema_decay=0.9)
    plain = make(family, ema_decay=0.9)
    close(learn(plain, cuts), learn(replayed, cuts))
    close(state_tensors(plain.averaged), state_tensors(replayed.averaged))
    assert replayed.mean_loss() == pytest.approx(plain.mean_loss())
    assert Tape.made == len({(len(cut.rows), cut.source_length) for cut in cuts}) == 2


def test_a_model_that_waits_goes_on_without(make, data, monkeypatch) -> None:
    """A score that asks the GPU for a number, say: known before anything is recorded."""
    modes: list[str] = []
    monkeypatch.setattr(update, "no_waiting", WATCH)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    original = update.objective

    def asks(*args: Any) -> torch.Tensor:
        if modes and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation\nand more")
        return original(*args)

    monkeypatch.setattr(update, "objective", asks)
    said: list[str] = []
    cuts = BatchSampler(data, 40, 5, seed=1, bucket_shapes=2).epoch(0)
    found = learn(make("recurrent", graphs=True, said=said), cuts)
    close(learn(make("recurrent"), cuts), found)
    [line] = said
    assert "without CUDA graphs" in line
    assert line.endswith("called a synchronizing CUDA operation")
    assert modes == ["error", "default"]


def test_another_error_is_not_taken_for_waiting(make, data, monkeypatch) -> None:
    monkeypatch.setattr(update, "no_waiting", WATCH)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)

    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(update, "objective", broken)
    cuts = BatchSampler(data, 40, 5, seed=1, bucket_shapes=2).epoch(0)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        learn(make("recurrent", graphs=True), cuts)


class BrokenGraph:
    """A CUDA graph whose recording is refused at the end."""

    def capture_begin(self, pool: Any) -> None: ...

    def capture_end(self) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_what_cannot_be_recorded_says_what_to_do(make, data, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", BrokenGraph)
    cuts = BatchSampler(data, 40, 5, seed=1, bucket_shapes=1).epoch(0)
    said = r"\(operation not permitted when stream is capturing\).*training\.cuda_graphs=false"
    with pytest.raises(UserError, match=said):
        learn(make("recurrent", graphs=True), cuts)


def test_a_step_follows_pytorch(make, data, family: str) -> None:
    """The same as loss.backward, clip_grad_norm_ and AdamW, written out."""
    made = make(family, label_smoothing=0.1, grad_clip=0.05)
    other = copy.deepcopy(made.model)
    optimizer = update.optimizer_for(other, made.table)
    cut = BatchSampler(data, 10**6, 29, seed=1).epoch(0)[0]
    for step in range(3):
        made(cut, 0.01, step)
        batch = data.batch(cut.rows)
        logits = other(batch.source, batch.source_mask, batch.target)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=0, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        optimizer.param_groups[0]["lr"].fill_(0.01)
        optimizer.step()
    close(state_tensors(other), state_tensors(made.model))


def test_the_running_mean(make, data) -> None:
    made = make("recurrent", ema_decay=0.5)
    cuts = BatchSampler(data, 40, 5, seed=1).epoch(0)
    wanted = {name: tensor.clone() for name, tensor in state_tensors(made.model).items()}
    for step, cut in enumerate(cuts):
        made(cut, 0.01, step)
        kept = min(0.5, (1 + step) / (10 + step))
        for name, tensor in state_tensors(made.model).items():
            wanted[name] = kept * wanted[name] + (1 - kept) * tensor
        close(wanted, state_tensors(made.averaged))
    assert (plain := make("recurrent")).averaged is plain.model


def test_move_towards() -> None:
    means = [torch.tensor([1.0, 3.0]), torch.tensor(5.0)]
    move_towards(means, [torch.tensor([2.0, 3.0]), torch.tensor(9.0)], torch.tensor(0.25))
    assert [mean.tolist() for mean in means] == [[1.25, 3.0], 6.0]


def test_a_parameter_without_part_in_the_loss_rests(tiny, data) -> None:
    config = tiny("recurrent")
    model = build(config.model, VOCAB, VOCAB, False)
    model.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
    made = Update(model, config.training, DeviceDataset(data, "cpu"), torch.float32, False, print)
    learn(made, BatchSampler(data, 40, 5, seed=1).epoch(0))
    assert state_tensors(model)["idle"].tolist() == [1.0, 1.0, 1.0]


# --- precision ------------------------------------------------------------------------------------


def test_weights_change_precision_and_frequencies_do_not(tiny) -> None:
    table = tiny("transformer").model
    waves = type(table).model_validate(table.model_dump() | {"position": "sinusoidal"})
    model = build(waves, VOCAB, VOCAB, False)
    half = in_precision(model, torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in half.buffers()} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_what_computes_follows_the_weights(tiny, data) -> None:
    config = tiny("recurrent")
    model = build(config.model, VOCAB, VOCAB, False)
    made = Update(model, config.training, DeviceDataset(data, "cpu"), torch.bfloat16, False, print)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.5)
    made.refresh()
    assert all(bool((p == 1.5).all()) for p in made.worker.parameters())


def test_gradients_arrive_in_the_weights_precision() -> None:
    parameters: list[torch.Tensor] = [torch.ones(2), torch.ones(3), torch.ones(1)]
    update.set_gradients(parameters, [torch.ones(2).bfloat16(), None, torch.full((1,), 2.0)])
    assert [p.grad if p.grad is None else p.grad.tolist() for p in parameters] == [
        [1, 1],
        None,
        [2],
    ]
    assert parameters[0].grad is not None
    assert parameters[0].grad.dtype == torch.float32


def test_a_cpu_computes_in_float32() -> None:
    assert run.dtype("auto", "cpu") == run.dtype("float32", "cpu") == torch.float32


def test_bfloat16_is_tried_elsewhere_first(monkeypatch) -> None:
    """A CPU that announces bfloat16 and dies of it takes a trial's process with it, not the user's."""
    died = subprocess.CompletedProcess([], -4)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    with pytest.raises(UserError, match=r"training\.precision=float32.*ONEDNN_MAX_CPU_ISA"):
        run.dtype("bfloat16", "cpu")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    assert run.dtype("bfloat16", "cpu") == torch.bfloat16


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_what_is_frozen_stays_and_the_rest_learns_as_before(make, data, precision) -> None:
    """Of a model that a copy computes for, too."""
    cuts = BatchSampler(data, 10**6, 8, seed=1).epoch(0)
    made = make("transformer", ema_decay=0.5)
    frozen = {"source_embedding.weight", "encoder.0.feed_forward.up.weight", "decoder_norm.bias"}
    for name, parameter in made.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    before = copy.deepcopy(state_tensors(made.model))
    part = Update(made.model, made.table, made.data, precision, False, print)
    learn(part, cuts)
    for name, value in state_tensors(part.model).items():
        assert torch.equal(value, before[name]) == (name in frozen), name
    for name, value in state_tensors(part.worker).items():
        torch.testing.assert_close(value.float(), state_tensors(part.model)[name])
    for name, value in state_tensors(part.averaged).items():
        assert torch.equal(value, before[name]) == (name in frozen), name
    assert part.model.trainable_count == part.model.parameter_count - sum(
        before[name].numel() for name in frozen
    )
    inside = {id(p) for group in part.optimizer.param_groups for p in group["params"]}
    assert len(inside) == len(before) - len(frozen)
