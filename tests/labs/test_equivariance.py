"""Equivariance: it fails when something else tells the order, or when a position says nothing."""

import pytest
import torch

from regard import config
from regard.attention import POSITIONS, Position, causal_mask
from regard.labs import equivariance
from regard.labs.config_variants import list_variants


class Silent(Position):
    """Takes any options, and says nothing."""

    def __init__(self, width, heads, head_dim, **options):
        super().__init__(width, heads, head_dim)


class Counted(Position):
    """x + t"""

    def embed(self, x, at):
        return x + at[..., None]


def failed(result):
    return [check.name for check in result.checks if not check.passed]


def test_every_kind_of_position_is_tried(lab):
    cases = lab.run().figures["cases"]
    assert {case.split(",")[0] for case in cases} >= set(POSITIONS) - {"none"}
    assert {"relative, form=query", "rotary, scaling=yarn", "causal mask"} <= set(cases)


@pytest.mark.parametrize("kind", [kind for kind in POSITIONS if kind != "none"])
def test_a_position_that_says_nothing_is_noticed(lab, monkeypatch, kind):
    monkeypatch.setitem(POSITIONS, kind, Silent)
    names = failed(lab.run())
    assert f"gap with {kind}" in names
    assert all(name.startswith(f"gap with {kind}") for name in names)


def test_a_place_where_there_should_be_none_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "none", Counted)
    assert failed(lab.run()) == ["gap with no position, no mask"]


def test_a_mask_that_hides_nothing_is_noticed(lab, monkeypatch):
    monkeypatch.setattr(equivariance, "causal_mask", lambda q, k: causal_mask(q, k) | True)
    assert failed(lab.run()) == ["gap with causal mask"]


def test_a_users_own_position_is_tried_too(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "mine", Silent)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"mine"})
    assert failed(lab.run()) == ["gap with mine"]


def test_a_kind_without_defaults_is_left_out(lab, monkeypatch):
    class Stepped(Counted):
        def __init__(self, width, heads, head_dim, step):
            super().__init__(width, heads, head_dim)

    monkeypatch.setitem(POSITIONS, "stepped", Stepped)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"stepped"})
    result = lab.run()
    assert result.passed
    assert "stepped" not in result.figures["cases"]


def test_kinds_in_a_file_of_the_users_are_known(monkeypatch, tmp_path):
    monkeypatch.setitem(config.EXTENSIONS, "position", set())
    file = tmp_path / "kinds_of_equivariance.py"
    file.write_text('from regard.config import EXTENSIONS\nEXTENSIONS["position"].add("filed")\n')
    monkeypatch.setenv("REGARD_PLUGINS", str(file))
    assert list_variants(config.Position)[-1].name == "kind=filed"


@pytest.mark.parametrize("seed", range(3))
def test_three_tokens_suffice(lab, seed):
    assert lab.run(seed=seed, tokens=3, width=8, orders=1).passed


def test_another_right_answer(lab):
    def restore(outputs, order):
        straight = torch.empty_like(outputs)
        straight[order] = outputs
        return straight

    assert all(remark.passed for remark in lab.exercise.grade(restore))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda outputs, order: outputs,
        lambda outputs, order: outputs[order],
        lambda outputs, order: outputs.flip(0),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert "A(X[order]) is A(X)[order]" in remarks[0].message
    assert "order = [" in remarks[0].message
