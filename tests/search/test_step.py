"""The chunked `topk` against `torch.topk`."""

import pytest
import torch

from regard.search.step import CHUNK, topk


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("vocab", [7, CHUNK, 5 * CHUNK + 3, 29 * CHUNK, 31 * CHUNK + 1, 1999])
def test_topk_equals_torch(count, vocab):
    values = torch.randn(11, vocab, generator=torch.Generator().manual_seed(1))
    values[3] = values[3].sort(descending=True).values  # all in one chunk
    values[4] = values[4].sort().values  # at the end, in the incomplete chunk
    values[5, 2:] = float("-inf")
    top, index = topk(values, count)
    expected = values.topk(count)
    assert torch.equal(top, expected.values)
    assert torch.equal(values.gather(1, index), top)
    assert all(len(set(row)) == count for row in index.tolist())
    assert torch.equal(index[:3], expected.indices[:3])


def test_top_1_is_the_first_of_equal_values():
    values = torch.zeros(2, 1000)
    values[1, [997, 400, 77]] = 1.0
    assert topk(values, 1)[1].tolist() == [[0], [77]]
