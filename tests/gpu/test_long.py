"""Long sequences on a GPU: FlexAttention equals the matrix, with gradients; nothing is as large as one."""

from typing import Any

import pytest
import torch

from regard import config
from regard.attention import MaskRule, MultiHeadBase, flex, long
from regard.models import build
from regard.models.build import build_heads
from regard.text.batch import BatchSpec, DeviceDataset, EncodedPairs
from regard.training.device import use_cuda_stream
from regard.training.step import TrainStep

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler

HEADS, LENGTH = 4, 700  # no multiple of a block
LONGEST = 32_768
KINDS: dict[str, dict[str, Any]] = {
    "rotary": {"position": "rotary"},
    "alibi": {"position": "alibi"},
    "relative": {"position": {"kind": "relative", "max_distance": 13}},
    "relative, query": {"position": {"kind": "relative", "form": "query", "max_distance": 13}},
    "window": {"position": "rotary", "attention": {"window": 150}},
}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
CASES = [
    *((kind, torch.float32, True) for kind in KINDS),
    ("relative", torch.float32, False),  # keys on both sides
    ("relative", torch.bfloat16, True),
]


def build_layer(kind: str, d_model: int, heads: int, dtype: torch.dtype) -> MultiHeadBase:
    torch.manual_seed(1)
    attention = {"heads": heads} | KINDS[kind].get("attention", {})
    table = KINDS[kind] | {"d_model": d_model, "attention": attention}
    return build_heads(config.DecoderOnly.model_validate(table), 0).to("cuda", dtype)


def make_rule(batch: int, length: int, causal: bool, lengths: list[int] | None = None) -> MaskRule:
    ids = torch.arange(length, device="cuda").expand(batch, length)
    visible = None if lengths is None else ids < torch.tensor(lengths, device="cuda")[:, None]
    return MaskRule(ids, ids, visible, 0 if causal else None, is_self=True)


@pytest.mark.parametrize(("kind", "dtype", "causal"), CASES, ids=str)
def test_rules_equal_matrices(kind, dtype, causal, monkeypatch):
    """Outputs and all gradients; a sentence of the batch has padding."""
    calls = []
    run_kernel = flex.run_kernel
    monkeypatch.setattr(
        flex, "run_kernel", lambda *a, **o: (calls.append(1), run_kernel(*a, **o))[1]
    )
    layer = build_layer(kind, 32 * HEADS, HEADS, dtype)
    rule = make_rule(2, LENGTH, causal, [LENGTH, 555])
    x = torch.randn(2, LENGTH, 32 * HEADS, device="cuda", dtype=dtype)
    results = []
    for mask, precision in ((rule, dtype), (rule.matrix(), torch.float32)):
        layer, inputs = layer.to(precision), x.to(precision).detach().requires_grad_()
        output = layer.self_attend(inputs, mask, rule.key_position_ids)[0][rule.visible]
        loss = (output.float() * torch.linspace(-1, 1, output.numel()).view_as(output).cuda()).sum()
        gradients = torch.autograd.grad(loss, [inputs, *layer.parameters()])
        names = [name for name, _ in layer.named_parameters()]
        results.append(
            dict(zip(("output", "x", *names), (output.detach(), *gradients), strict=True))
        )
    assert bool(calls) == (kind != "rotary")
    for name, expected in results[1].items():
        error = (results[0][name].float() - expected).norm() / expected.norm()
        # A number of the table is the sum over all queries of terms that nearly cancel.
        assert error < TOLERANCE[dtype] * (4 if name == "position.table" else 1), name


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_as_large_as_a_matrix(kind):
    """One layer at 32,768 tokens, forwards and backwards, in less than a boolean mask alone takes."""
    layer = build_layer(kind, 512, 8, torch.bfloat16)

    def step() -> None:
        x = torch.randn(1, LONGEST, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        rule = make_rule(1, LONGEST, causal=True)
        output = layer.self_attend(x, rule, rule.key_position_ids)[0]
        output.backward(torch.ones_like(output))
        assert x.grad is not None
        assert x.grad.isfinite().all()

    step()  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    assert torch.cuda.max_memory_allocated() - before < LONGEST**2


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_long_sequences_equals_training_with_matrices(kind, monkeypatch):
    """Steps of a model, as CUDA graphs where PyTorch allows it: sources with padding, then long targets."""
    table = {"kind": "decoder-only", "d_model": 64, "d_ff": 64, "dropout": 0.0} | KINDS[kind]
    table |= {"attention": {"heads": 2} | table.get("attention", {}), "decoder": {"layers": 2}}
    settings = config.Config.model_validate({"model": table, "training": {"warmup_steps": 1}})
    ids = torch.randint(4, 17, (3, 2000), generator=torch.Generator().manual_seed(3)).tolist()
    pairs = EncodedPairs([[*ids[0][:300], 2], [*ids[1][:200], 2]], ids[:2])
    batch = BatchSpec([0, 1], 301, 2001)

    def train(threshold: int) -> list[torch.Tensor]:
        monkeypatch.setattr(long, "LONG", threshold)
        torch.manual_seed(5)
        model = build(settings.model, 17, 17, False).to("cuda")
        data = DeviceDataset(pairs, "cuda")
        step = TrainStep(model, settings.training, data, torch.float32, True, print)
        before = [p.detach().clone() for p in model.parameters()]
        for number in range(4):
            step([batch], 1e-3, number)
        torch.cuda.synchronize()
        return [p.detach() - old for p, old in zip(model.parameters(), before, strict=True)]

    with use_cuda_stream("cuda"):
        rules, matrices = train(long.LONG), train(10**9)
    moved = sum(float(x.square().sum()) for x in matrices) ** 0.5
    distance = sum(float((x - y).square().sum()) for x, y in zip(rules, matrices, strict=True))
    assert moved > 0.1
    assert distance**0.5 < 0.02 * moved
