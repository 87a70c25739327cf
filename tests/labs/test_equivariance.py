"""Equivariance: the lab fails when something else encodes the order, or when a position does not."""

import pytest
import torch

from regard import config
from regard.attention import POSITIONS, Position, causal_mask
from regard.labs import equivariance
from regard.labs.measurements.config_variants import list_variants


class NoOp(Position):
    """Takes any options, and has no effect."""

    def __init__(self, d_model, heads, head_dim, **options):
        super().__init__(d_model, heads, head_dim)


class IndexAdded(Position):
    """x + t"""

    def embed(self, x, position_ids):
        return x + position_ids[..., None]


def failed(result):
    return [check.name for check in result.checks if not check.passed]


def test_every_position_is_tested(lab):
    cases = lab.run().figures["cases"]
    assert {case.split(",")[0] for case in cases} >= set(POSITIONS) - {"none"}
    assert {"relative, form=query", "rotary, scaling=yarn", "causal mask"} <= set(cases)


@pytest.mark.parametrize("kind", [kind for kind in POSITIONS if kind != "none"])
def test_position_without_effect_is_detected(lab, monkeypatch, kind):
    monkeypatch.setitem(POSITIONS, kind, NoOp)
    names = failed(lab.run())
    assert f"gap with {kind}" in names
    assert all(name.startswith(f"gap with {kind}") for name in names)


def test_position_in_the_plain_layer_is_detected(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "none", IndexAdded)
    assert failed(lab.run()) == ["gap with no position, no mask"]


def test_mask_that_hides_nothing_is_detected(lab, monkeypatch):
    monkeypatch.setattr(equivariance, "causal_mask", lambda q, k: causal_mask(q, k) | True)
    assert failed(lab.run()) == ["gap with causal mask"]


def test_registered_position_is_tested(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "mine", NoOp)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"mine"})
    assert failed(lab.run()) == ["gap with mine"]


def test_kind_without_defaults_is_skipped(lab, monkeypatch):
    class Stepped(IndexAdded):
        def __init__(self, width, heads, head_dim, step):
            super().__init__(width, heads, head_dim)

    monkeypatch.setitem(POSITIONS, "stepped", Stepped)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"stepped"})
    result = lab.run()
    assert result.passed
    assert "stepped" not in result.figures["cases"]


def test_kinds_from_a_plugin_file_are_known(monkeypatch, tmp_path):
    monkeypatch.setitem(config.EXTENSIONS, "position", set())
    file = tmp_path / "kinds_of_equivariance.py"
    file.write_text('from regard.config import EXTENSIONS\nEXTENSIONS["position"].add("filed")\n')
    monkeypatch.setenv("REGARD_PLUGINS", str(file))
    assert list_variants(config.Position)[-1].name == "kind=filed"


def test_nan_in_one_permutation_is_detected(lab, monkeypatch):
    """Wherever it is among the permutations: `max` would drop it, unless it came first."""
    gap = equivariance.equivariance_gap

    def nan_in_some(layer, x, permutation):
        return float("nan") if permutation[0] == permutation[-1] - 1 else gap(layer, x, permutation)

    monkeypatch.setattr(equivariance, "equivariance_gap", nan_in_some)
    permutations = [torch.tensor(p) for p in ([0, 2, 1], [1, 0, 2], [0, 2, 1])]
    monkeypatch.setattr(equivariance, "sample_permutations", lambda *_: permutations)
    assert "gap with no position, no mask" in failed(lab.run(tokens=3))


def test_one_token_has_only_one_order(lab):
    result = lab.run(tokens=1)
    assert result.law_holds
    assert len(failed(result)) == len(result.effect)
    lab.plot(result).canvas.draw()


@pytest.mark.parametrize("seed", range(3))
def test_three_tokens_suffice(lab, seed):
    assert lab.run(seed=seed, tokens=3, d_model=8, permutations=1).passed


def test_equivalent_answer_passes(lab):
    def restore(outputs, permutation):
        restored = torch.empty_like(outputs)
        restored[permutation] = outputs
        return restored

    assert all(check.passed for check in lab.exercise.grade(restore))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda outputs, permutation: outputs,
        lambda outputs, permutation: outputs[permutation],
        lambda outputs, permutation: outputs.flip(0),
        lambda outputs, permutation: outputs * float("nan"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert "A(X[permutation]) is A(X)[permutation]" in checks[0].message
    assert "permutation = [" in checks[0].message
