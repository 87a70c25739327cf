"""Costs: every count is exact, and keys and values that are not shared are detected."""

import pytest

from regard import UserError
from regard.attention import MultiHead
from regard.attention.scores import ScaledDot
from regard.models.kv_cache import KVCache

M, N, D, H, G = 13, 5, 7, 6, 3
SIZES = {"tokens": M, "queries": N, "d_model": D, "heads": H, "groups": G}


def test_formulas(lab):
    result = lab.run(**SIZES)
    figures = result.figures
    assert result.passed
    full = H * (3 * M * D**2 + 2 * M**2 * D) + H * M * D**2
    assert dict(zip(figures["cases"], figures["flops"], strict=True)) == {
        "self": 2 * full,
        "causal": 2 * full,
        "cross": 2 * (H * (N * D**2 + 2 * M * D**2 + 2 * M * N * D) + H * N * D**2),
        "multi-query": 2 * (full - 2 * M * D**2 * (H - 1)),
        "grouped-query, g = 3": 2 * (full - 2 * M * D**2 * (H - G)),
    }
    assert figures["saved_multi_query"] == 2 * M * D**2 * (H - 1)
    assert figures["saved_grouped"] == 2 * M * D**2 * (H - G)
    assert figures["cache"] == [2 * H * M * D, 2 * M * D, 2 * G * M * D]
    assert figures["without_the_sheets_m"] == full - (M - 1) * H * D**2
    assert "sheet's worked solution drops this M" in lab.derivation


def test_pytorch_counts_0_for_the_fused_kernel(lab):
    projections = 2 * 4 * H * M * D**2
    assert lab.run(**SIZES).figures["flops_fused"] == projections


@pytest.mark.parametrize(
    ("changed", "present"),
    [
        ({"tokens": 1}, True),
        ({"groups": 1}, True),
        ({"groups": 6}, False),  # nothing is shared
        ({"d_model": 1}, True),  # the scores dominate: what is saved is a small share, but saved
        ({"tokens": 512}, True),
    ],
)
def test_law_holds_at_other_sizes(lab, changed, present):
    result = lab.run(**SIZES | changed)
    assert result.law_holds
    assert result.effect_is_present is present


def test_share_of_all_macs_is_noted(lab):
    """At 256 tokens grouped queries save less than 5 % of all MACs, and still two projections of three."""
    result = lab.run(tokens=256)
    assert result.passed
    assert [check.measured for check in result.effect] == pytest.approx([5 / 6, 2 / 3, 6, 3])
    assert "saves 3.7% of all MACs" in result.notes[1]


def test_growth_and_big_o_are_shown(lab):
    result = lab.run(**SIZES)
    assert dict(zip(result.table.columns, result.table.rows[0], strict=True)) == {
        "attention": "self",
        "big-O": "O(M d² + M² d)",
        "MACs by formula": result.figures["macs"][0],
        "flops by PyTorch": result.figures["flops"][0],
        "ratio": 2,
        "2 M": f"x {4 * (D + M) / (2 * D + M):.4g}",
        "2 d": f"x {2 * (4 * D + M) / (2 * D + M):.4g}",
        "2 h": "x 2",
    }


def failed(result):
    return [check.name for check in result.law if not check.passed]


def test_unshared_keys_are_detected(lab, monkeypatch):
    make = MultiHead.__init__

    def unshared(self, *sizes, kv_heads=None, **options):
        make(self, *sizes, **options)

    monkeypatch.setattr(MultiHead, "__init__", unshared)
    assert failed(lab.run(**SIZES)) == [
        "flops, multi-query: twice the MACs",
        "flops, grouped-query, g = 3: twice the MACs",
        "growth, multi-query: minus that of the formula",
        "growth, grouped-query, g = 3: minus that of the formula",
        "MACs saved by multi-query",
        "MACs saved by g = 3",
        "KV cache elements, multi-query",
        "KV cache elements, g = 3",
    ]


def test_scores_computed_twice_are_detected(lab, monkeypatch):
    score = ScaledDot.forward
    monkeypatch.setattr(
        ScaledDot, "forward", lambda self, q, k: (score(self, q, k) + score(self, q, k)) / 2
    )
    names = [name for name in failed(lab.run(**SIZES)) if "growth" not in name]
    assert [name.split(":")[0] for name in names] == [
        "flops, self",
        "flops, causal",
        "flops, cross",
        "flops, multi-query",
        "flops, grouped-query, g = 3",
    ]


def test_cache_that_holds_copies_is_detected(lab, monkeypatch):
    append = KVCache.append

    def twice(self, keys, values, slots=None):
        result = append(self, keys, values, slots)
        self.keys = keys.repeat(1, 2, 1, 1)
        return result

    monkeypatch.setattr(KVCache, "append", twice)
    assert "KV cache elements, multi-query" in failed(lab.run(**SIZES))


def test_failed_count_is_shown_exactly(lab, monkeypatch):
    monkeypatch.setattr("regard.labs.costs.saved_macs", lambda *sizes: 1)
    messages = [
        check.message for check in lab.run(tokens=512, d_model=16).checks if not check.passed
    ]
    assert "MACs saved by multi-query: 1310720 ≠ 1" in messages


def test_heads_not_divisible_by_groups(lab):
    with pytest.raises(UserError, match="6 heads cannot be divided into 4 key/value groups"):
        lab.run(heads=6, groups=4)


def dropped_m(tokens, d_model, heads, groups):
    """The formula of the discussion sheet."""
    full = (heads + 2 * groups) * tokens * d_model**2 + 2 * heads * tokens**2 * d_model
    return full + heads * d_model**2


def shared_scores(tokens, d_model, heads, groups):
    return (2 * heads + 2 * groups) * tokens * d_model**2 + 2 * groups * tokens**2 * d_model


def flops(tokens, d_model, heads, groups):
    return 2 * ((2 * heads + 2 * groups) * tokens * d_model**2 + 2 * heads * tokens**2 * d_model)


@pytest.mark.parametrize("wrong", [dropped_m, shared_scores, flops])
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert "macs(tokens=" in checks[0].message
    assert "for each of M tokens" in checks[0].message
