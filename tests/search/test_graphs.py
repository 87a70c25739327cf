"""Search in the shapes of CUDA graphs gives what it gives without: the graphs themselves need a GPU."""

from contextlib import nullcontext

import pytest
import torch

from regard.search import beam, greedy, run, sample
from regard.search.captured import Arguments, assign, copy_tensors, share
from regard.search.graphs import Graphs
from regard.search.run import GraphSteps, round_batch

LIMITS = (37, 3, 20, 64, 1, 20, 9)
SEARCHES = {
    "greedy": lambda *args: [[output] for output in greedy(*args)],
    "beam": lambda *args: beam(*args, beam_size=3, nbest=2),
    "sample": lambda *args: [[output] for output in sample(*args, seeds=[*range(len(LIMITS))])],
}


class FakeGraphs(Graphs):
    """Computes what a graph would: from the tensors of the first call of a shape into the same tensors."""

    def __init__(self):
        self.records, self.batches, self.is_off = {}, [], False

    def use(self):
        return nullcontext()

    def call(self, name, function, inputs):
        return function(*inputs)

    def advance(self, model, search, length, count):
        key = search.structure()
        assert length + count <= 64
        record = self.records.setdefault(key, copy_tensors(search))
        assign(record, search)
        self.batches.append(len(search.lengths))
        for _ in range(count):
            after = share(record).step(model)
            assert after.structure() == key  # a replay cannot change a shape
            assign(record, after)
        return share(record)


@pytest.mark.parametrize("search", SEARCHES)
def test_shapes_of_graphs_change_no_output(build_model, random_sources, name, search, monkeypatch):
    model = build_model(name, 11)
    memory = model.encode(*random_sources(11, (7, 2, 5, 1, 3, 6, 4)))
    arguments = (model, memory, torch.tensor(LIMITS))
    expected = SEARCHES[search](*arguments)
    fake = FakeGraphs()
    monkeypatch.setattr(run, "find_graphs", lambda model, device: fake)
    monkeypatch.setattr(run, "select_check_interval", lambda device: 4)
    outputs = SEARCHES[search](*arguments)
    for best, correct in zip(outputs, expected, strict=True):
        assert [output.ids for output in best] == [output.ids for output in correct]
        scores = [output.score for output in correct]
        assert [output.score for output in best] == pytest.approx(scores, abs=1e-4)
    assert {*fake.batches} <= {7, 4, 1}


def test_a_done_row_is_replaced_before_its_next_position(build_model):
    steps = GraphSteps(build_model("gru", 11), FakeGraphs())
    assert steps.arrange([0, 2, 3], 4, is_overdue=False) is None
    assert steps.arrange([0, 2, 3], 4, is_overdue=True) == [0, 2, 3, 3]
    assert steps.arrange([1, 2, 3, 5], 6, is_overdue=False) == [1, 2, 3, 5]
    assert steps.arrange([1], 6, is_overdue=False) == [1]
    assert [round_batch(n) for n in (1, 2, 5, 16, 17, 65, 300, 40_000)] == [
        1,
        4,
        16,
        16,
        64,
        256,
        512,
        40_000,
    ]


def test_assign_reads_a_tensor_before_it_is_overwritten():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assign(Arguments((one, two)), Arguments((two, one)))
    assert (one.item(), two.item()) == (2.0, 1.0)


def test_a_copy_has_its_own_memory_for_each_tensor():
    one = torch.tensor([1.0])
    copied = copy_tensors(Arguments((one, one))).tensors()
    assert len({tensor.data_ptr() for tensor in [one, *copied]}) == 3
