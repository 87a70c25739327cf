"""Costs: every count is exact, and keys and values that are not shared are noticed."""

import pytest

from regard import UserError
from regard.attention import MultiHead
from regard.attention.scores import ScaledDot
from regard.models.past import Past

M, N, D, H, G = 13, 5, 7, 6, 3
SIZES = {"tokens": M, "queries": N, "width": D, "heads": H, "groups": G}


def test_the_formulas(lab):
    result = lab.run(**SIZES)
    found = result.figures
    assert result.passed
    whole = H * (3 * M * D**2 + 2 * M**2 * D) + H * M * D**2
    assert dict(zip(found["cases"], found["flops"], strict=True)) == {
        "self": 2 * whole,
        "causal": 2 * whole,
        "cross": 2 * (H * (N * D**2 + 2 * M * D**2 + 2 * M * N * D) + H * N * D**2),
        "multi-query": 2 * (whole - 2 * M * D**2 * (H - 1)),
        "grouped-query, g = 3": 2 * (whole - 2 * M * D**2 * (H - G)),
    }
    assert found["saved_multi_query"] == 2 * M * D**2 * (H - 1)
    assert found["saved_grouped"] == 2 * M * D**2 * (H - G)
    assert found["cache"] == [2 * H * M * D, 2 * M * D, 2 * G * M * D]
    assert found["without_the_sheets_m"] == whole - (M - 1) * H * D**2
    assert "sheet's worked solution drops this M" in lab.derivation


def test_pytorch_counts_nothing_for_the_fused_kernel(lab):
    maps_alone = 2 * 4 * H * M * D**2
    assert lab.run(**SIZES).figures["flops_fused"] == maps_alone


@pytest.mark.parametrize(
    "sizes",
    [SIZES | {"tokens": 1}, SIZES | {"width": 1}, SIZES | {"groups": 1}, SIZES | {"groups": 6}],
)
def test_any_size(lab, sizes):
    assert lab.run(**sizes).passed


def failed(result):
    return [check.name for check in result.checks if not check.passed]


def test_keys_that_are_not_shared_are_noticed(lab, monkeypatch):
    make = MultiHead.__init__

    def unshared(self, *sizes, kv_heads=None, **options):
        make(self, *sizes, **options)

    monkeypatch.setattr(MultiHead, "__init__", unshared)
    assert failed(lab.run(**SIZES)) == [
        "flops, multi-query: twice the products",
        "flops, grouped-query, g = 3: twice the products",
        "products saved by multi-query",
        "products saved by g = 3",
        "numbers in the cache, multi-query",
        "numbers in the cache, g = 3",
    ]


def test_scores_that_are_computed_twice_are_noticed(lab, monkeypatch):
    score = ScaledDot.forward
    monkeypatch.setattr(
        ScaledDot, "forward", lambda self, q, k: (score(self, q, k) + score(self, q, k)) / 2
    )
    assert [name.split(":")[0] for name in failed(lab.run(**SIZES))] == [
        "flops, self",
        "flops, causal",
        "flops, cross",
        "flops, multi-query",
        "flops, grouped-query, g = 3",
    ]


def test_a_cache_that_holds_copies_is_noticed(lab, monkeypatch):
    add = Past.add

    def twice(self, keys, values):
        found = add(self, keys, values)
        self.keys = keys.repeat(1, 2, 1, 1)
        return found

    monkeypatch.setattr(Past, "add", twice)
    assert "numbers in the cache, multi-query" in failed(lab.run(**SIZES))


def test_a_failed_count_is_told_to_the_last_digit(lab, monkeypatch):
    monkeypatch.setattr("regard.labs.costs.saved", lambda *sizes: 1)
    told = [check.message for check in lab.run(tokens=512, width=16).checks if not check.passed]
    assert "products saved by multi-query: 1310720 ≠ 1" in told


def test_heads_that_cannot_share_equally(lab):
    with pytest.raises(UserError, match="6 heads cannot share 4 keys and values equally"):
        lab.run(heads=6, groups=4)


def dropped_m(tokens, width, heads, groups):
    """As on the sheet."""
    whole = (heads + 2 * groups) * tokens * width**2 + 2 * heads * tokens**2 * width
    return whole + heads * width**2


def shared_scores(tokens, width, heads, groups):
    return (2 * heads + 2 * groups) * tokens * width**2 + 2 * groups * tokens**2 * width


def flops(tokens, width, heads, groups):
    return 2 * ((2 * heads + 2 * groups) * tokens * width**2 + 2 * heads * tokens**2 * width)


@pytest.mark.parametrize("wrong", [dropped_m, shared_scores, flops])
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert "products(tokens=" in remarks[0].message
    assert "for each of M tokens" in remarks[0].message
