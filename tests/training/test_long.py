"""PyTorch's FlexAttention takes the rules of long sequences; its compiler cannot read checked functions."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from regard.attention import POSITIONS, MaskRule
from regard.attention.flex import attend_flex
from regard.attention.long import attend_part, bias_rule


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
