"""Decoding on a GPU gives what the CPU gives, for every kind of model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.models import Model
from regard.search import Hypothesis, beam, greedy, sample
from regard.search.graphs import find_graphs

Outputs = list[list[Hypothesis]]
LENGTHS = (7, 2, 5)
MAX_LENGTHS = (6, 4, 5)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def source(registry: Any) -> tuple[Tensor, Tensor]:
    """(ids, mask) of sentences of different lengths."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    random = torch.Generator().manual_seed(2)
    ids = torch.randint(3, registry.SOURCE_VOCAB, mask.shape, generator=random)
    return ids * mask, mask


def search_greedily(model: Model, memory: Any, limits: Tensor, **options: Any) -> Outputs:
    return [[hypothesis] for hypothesis in greedy(model, memory, limits, **options)]


def search_with_beam(model: Model, memory: Any, limits: Tensor, **options: Any) -> Outputs:
    return beam(model, memory, limits, 3, nbest=2, **options)


def sample_tokens(model: Model, memory: Any, limits: Tensor, **options: Any) -> Outputs:
    sampling = {"temperature": 0.9, "top_k": 11, "top_p": 0.9} | options
    return [[hypothesis] for hypothesis in sample(model, memory, limits, [3, 5, 7], **sampling)]


SEARCHES: dict[str, Callable[..., Outputs]] = {
    "greedy": search_greedily,
    "beam": search_with_beam,
    "sample": sample_tokens,
}


def make_model(registry: Any, table: dict[str, Any], dtype: torch.dtype) -> Model:
    """Weights times 1.5: a new model would repeat one token."""
    model = registry.make(table).to(dtype)
    for parameter in model.parameters():
        parameter *= 1.5
    return model


def decode(
    model: Model,
    source: tuple[Tensor, Tensor],
    search: Any,
    device: str,
    max_lengths: tuple[int, ...] = MAX_LENGTHS,
    **options: Any,
) -> Outputs:
    model = model.to(device)
    ids, mask = (tensor.to(device) for tensor in source)
    limits = torch.tensor(max_lengths, device=device)
    return search(model, model.encode(ids, mask), limits, **options)


def are_equal(one: Outputs, two: Outputs) -> bool:
    """The same tokens; scores add up in float32."""
    hypotheses = [[h for nbest in outputs for h in nbest] for outputs in (one, two)]
    ids, scores = (
        [[getattr(h, name) for h in hs] for hs in hypotheses] for name in ("ids", "score")
    )
    return ids[0] == ids[1] and scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("name", SEARCHES)
def test_search_equals_the_cpu(registry, kinds, source, name: str) -> None:
    """In float64, where no two hypotheses are equal up to rounding."""
    wrong = {}
    for kind, table in kinds.items():
        model = make_model(registry, table, torch.float64)
        results = [decode(model, source, SEARCHES[name], device) for device in ("cpu", "cuda")]
        if not are_equal(*results):
            wrong[kind] = results
    assert not wrong


@pytest.mark.parametrize("name", SEARCHES)
def test_cuda_graphs_change_nothing(registry, kinds, source, name: str) -> None:
    """Every kind is captured, and replays give what the steps give without graphs, in float64."""
    wrong, not_captured = {}, []
    for kind, table in kinds.items():
        model = make_model(registry, table, torch.float64)
        options = (SEARCHES[name], "cuda", (18, 9, 20))
        expected = decode(model, source, *options, cuda_graphs=False)
        results = [decode(model, source, *options) for _ in range(3)]  # check, capture, replay
        if not all(are_equal(expected, result) for result in results):
            wrong[kind] = expected, results
        graphs = find_graphs(model, torch.device("cuda"))
        if graphs is None or not graphs.captured:
            not_captured.append(kind)
    assert not wrong
    assert not not_captured


def test_greedy_search_in_float32_equals_the_cpu(registry, kinds, source) -> None:
    """Without TF32: the outputs differ only after two tokens with equal logits up to rounding."""
    wrong, differing = {}, 0
    for kind, table in kinds.items():
        model = make_model(registry, table, torch.float32)
        gpu = decode(model, source, search_greedily, "cuda")
        cpu = decode(model, source, search_greedily, "cpu")
        for row, ([one], [two]) in enumerate(zip(cpu, gpu, strict=True)):
            if one.ids == two.ids:
                if two.score != pytest.approx(one.score, abs=1e-3):
                    wrong[kind, row] = one, two
                continue
            differing += 1
            if logit_gap(model, source, row, one.ids, two.ids) > 1e-3:
                wrong[kind, row] = one, two
    assert not wrong
    assert differing <= 0.05 * len(kinds) * len(LENGTHS)


def logit_gap(
    model: Model, source: tuple[Tensor, Tensor], row: int, one: list[int], two: list[int]
) -> float:
    """Difference of the logits of the first two tokens that differ."""
    position = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    ids, mask = (tensor[row : row + 1, : LENGTHS[row]] for tensor in source)
    target = torch.tensor([[1, *one[:position]]])
    logits = model(ids, mask, target)[0, -1]
    return float((logits[one[position]] - logits[two[position]]).abs())


def test_attention_weights_equal_the_cpu(registry, kinds, source) -> None:
    target = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 3], [1, 4, 4, 11]])
    wrong = {}
    for kind, table in kinds.items():
        model = registry.make(table).float()
        results = []
        for device in ("cpu", "cuda"):
            tensors = (tensor.to(device) for tensor in (*source, target))
            weights = model.to(device).attention_weights(*tensors)
            results.append({name: w.cpu() for name, w in weights.items()})
        one, two = results
        close = {n: torch.allclose(one[n], two[n], atol=1e-4) for n in one}
        if one.keys() != two.keys() or not all(close.values()):
            wrong[kind] = close
    assert not wrong
