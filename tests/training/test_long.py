"""PyTorch's FlexAttention takes the rules of long sequences; its compiler cannot read checked functions."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from regard.attention import POSITIONS, MaskRule, long
from regard.attention.flex import attend_flex
from regard.attention.long import attend_part, bias_rule
from regard.config import Config
from regard.models import build
from regard.text.batch import BatchSpec, DeviceDataset, EncodedPairs
from regard.training.step import TrainStep
from tests.attention.test_long import flex_semantics


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_the_rules(monkeypatch):
    """On a CPU: unfused, and forwards only. tests/gpu has the rest."""
    monkeypatch.setattr("regard.attention.flex.flex_kernel", lambda: flex_attention)
    position = POSITIONS["relative"](48, 3, form="query", max_distance=5)
    query, keys, values = torch.randn(3, 2, 3, 300, 16)
    ids = torch.arange(300).expand(2, 300)
    rule = MaskRule(ids, ids, ids < torch.tensor([[300], [211]]), latest=0, window=170)
    with torch.no_grad():
        output = attend_flex(query, keys, values, rule, bias_rule(position, query), 0.25)
        expected = attend_part(query, keys, values, query, rule, position, 0.0)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["bias", "query"])
def test_steps_through_flex_attention_equal_those_without(form, monkeypatch):
    """The optimizer, too: it gets the gradients as FlexAttention's own backward pass leaves them."""
    position = {"kind": "relative", "form": form, "max_distance": 13}
    table = {"kind": "decoder-only", "d_model": 24, "d_ff": 24, "dropout": 0.0}
    table |= {"position": position, "attention": {"heads": 2}, "decoder": {"layers": 1}}
    config = Config.model_validate({"model": table, "training": {"warmup_steps": 1}})
    ids = torch.randint(4, 17, (2, 150), generator=torch.Generator().manual_seed(3)).tolist()
    pairs = EncodedPairs([[*ids[0][:30], 2], [*ids[1][:20], 2]], ids)
    monkeypatch.setattr(long, "LONG", 100)
    monkeypatch.setattr("regard.attention.flex.flex_kernel", lambda: flex_semantics)

    def train(compiled: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(long, "can_compile", lambda query, values: compiled)
        torch.manual_seed(5)
        model = build(config.model, 17, 17, False)
        data = DeviceDataset(pairs, "cpu")
        step = TrainStep(model, config.training, data, torch.float32, False, print)
        for number in range(3):
            step([BatchSpec([0, 1], 31, 151)], 1e-3, number)
        return [parameter.detach() for parameter in model.parameters()]

    for one, other in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
