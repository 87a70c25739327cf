"""Causality: every model config is tested, and a leak of one future token is detected."""

from itertools import islice

import pytest
import torch

from regard import UserError, config
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES, Position
from regard.attention.positions import SCALINGS
from regard.labs import LABS, causality
from regard.labs.measurements.config_variants import list_variants, table_variants
from regard.models.build import CELLS, DECODERS, FEED_FORWARDS, NORMS
from regard.models.cells import Cell
from regard.models.mixers import CausalStateSpace
from regard.models.transformer_base import TransformerBase


@pytest.fixture(scope="module")
def tested():
    skipped = set(LABS["causality"].run(length=2).figures["skipped"])
    variants = [variant for variant in causality.model_variants() if variant.name not in skipped]
    return [config.Config(model=variant.value).model for variant in variants]


def field_values(tested, kind, *fields):
    """The values of a nested config field over all tested models of one kind."""
    values = [table for table in tested if table.kind == kind]
    for field in fields:
        values = [getattr(table, field) for table in values if hasattr(table, field)]
    return set(values)


@pytest.mark.parametrize("kind", ["transformer", "decoder-only"])
def test_every_transformer_option_is_tested(tested, kind):
    assert field_values(tested, kind, "position", "kind") == {*POSITIONS, "interleaved"}
    assert field_values(tested, kind, "position", "scaling") == set(SCALINGS)
    assert field_values(tested, kind, "position", "form") == {"bias", "query"}
    assert field_values(tested, kind, "attention", "kind") == set(HEADS)
    assert field_values(tested, kind, "attention", "score", "kind") == set(SCORES)
    assert field_values(tested, kind, "attention", "normaliser", "kind") == set(NORMALISERS)
    assert field_values(tested, kind, "attention", "kv_heads") == {None, 1, 2}
    assert field_values(tested, kind, "attention", "window") == {None, 1, 2}
    assert field_values(tested, kind, "mixer", "kind") == {"attention", "state-space"}
    assert field_values(tested, kind, "activation") == set(FEED_FORWARDS)
    assert field_values(tested, kind, "norm") == set(NORMS)
    assert field_values(tested, kind, "norm_position") == {"pre", "post"}
    pairs = {(table.attention.kind, table.position.kind) for table in tested if table.kind == kind}
    assert ("latent", "rotary") in pairs


def test_every_recurrent_option_is_tested(tested):
    kind = "recurrent"
    assert field_values(tested, kind, "cell") == set(CELLS)
    assert field_values(tested, kind, "decoder", "kind") == set(DECODERS)
    assert field_values(tested, kind, "attention", "kind") == {"single-head", "none"}
    assert field_values(tested, kind, "attention", "score", "kind") == set(SCORES)
    assert field_values(tested, kind, "attention", "normaliser", "kind") == set(NORMALISERS)
    assert field_values(tested, kind, "encoder", "position", "kind") == {
        "none",
        "sinusoidal",
        "learned",
    }


def test_skipped_configs_are_reported_with_a_reason(lab):
    result = lab.run(length=2)
    figures = result.figures
    names = [variant.name for variant in causality.model_variants()]
    assert sorted(figures["names"] + figures["skipped"]) == sorted(names)
    assert {"kind=pretrained", "kind=recurrent encoder.position.kind=alibi"} < set(
        figures["skipped"]
    )
    assert result.notes == result.to_dict()["notes"]
    assert sum(int(note.split()[1]) for note in result.notes) == len(figures["skipped"])
    assert any(
        note.endswith("of kind pretrained: its name has no default, so no model can be built")
        for note in result.notes
    )
    reason = "the position acts in self-attention, and a recurrent encoder has none"
    assert any(note.endswith(f"of kind recurrent: {reason}") for note in result.notes)


def test_variant_names_are_config_settings():
    values = {variant.name: variant.value for variant in list_variants(config.Rotary)}
    assert list(values) == [
        "kind=rotary",
        *(f"kind=rotary scaling={scaling}" for scaling in list(SCALINGS)[1:]),
    ]
    for value in values.values():
        config.Rotary.model_validate(value)


@pytest.fixture
def restrict(monkeypatch):
    """Test only the baseline of each family and the variants whose settings contain a word."""

    def restrict_to(word=None):
        def filtered(family):
            yield from islice(table_variants(family), 1)
            yield from (
                variant for variant in table_variants(family) if word and word in variant.name
            )

        monkeypatch.setattr(causality, "table_variants", filtered)
        monkeypatch.setattr(causality, "kind_pairs", lambda family: ())

    return restrict_to


def leaks(result):
    return [c for c in result.checks if not c.passed and c.name.startswith("largest change before")]


def test_mask_that_shows_the_next_token_is_detected(lab, monkeypatch, restrict):
    restrict()
    assert lab.run(length=5).passed
    monkeypatch.setattr(
        "regard.attention.masks.causal_mask",
        lambda q, k: k[..., None, :] <= q[..., :, None] + 1,
    )
    result = lab.run(length=5)
    names = " ".join(check.message for check in leaks(result))
    assert not result.passed
    assert "Future tokens leak in: kind=transformer" in names
    assert "Future tokens leak in: kind=decoder-only" in names
    assert "kind=recurrent" not in names


@pytest.mark.parametrize(
    ("part", "word", "detected"),
    [(CausalStateSpace, "state-space", "mixer.kind=state-space"), (Cell, None, "kind=recurrent")],
)
def test_state_that_reads_ahead_is_detected(lab, monkeypatch, restrict, part, word, detected):
    restrict(word)
    forward = part.forward
    monkeypatch.setattr(
        part, "forward", lambda self, x, *rest: forward(self, x.roll(-1, dims=1), *rest)
    )
    assert any(detected in check.message for check in leaks(lab.run(length=5)))


def test_model_that_ignores_its_input_is_detected(lab, monkeypatch, restrict):
    restrict()
    embed = TransformerBase._embed
    monkeypatch.setattr(TransformerBase, "_embed", lambda *arguments: 0 * embed(*arguments) + 1)
    result = lab.run(length=5)
    assert not leaks(result)
    messages = [check.message for check in result.checks if not check.passed]
    assert len(messages) == 2
    assert all("A token has no effect on its own output: kind=" in message for message in messages)


def test_control_without_a_change_has_no_effect(lab, restrict):
    restrict()
    result = lab.run(length=5, token_step=0)
    assert result.law_holds
    assert not result.effect_is_present
    lab.plot(result).canvas.draw()


def test_nan_is_detected(lab, monkeypatch, restrict):
    """In the second family, after finite changes: `max` would drop it."""
    restrict()
    changes, families = causality.output_changes, iter([1.0, float("nan"), 1.0])

    def with_nan(*arguments):
        return changes(*arguments) * next(families, 1.0)

    monkeypatch.setattr(causality, "output_changes", with_nan)
    failed = [check.name for check in lab.run(length=3).checks if not check.passed]
    assert failed == [
        "largest change before t, 1 models of kind transformer",
        "smallest change at t, 1 models of kind transformer",
    ]


def test_registered_position_is_tested(lab, monkeypatch, restrict):
    class Ahead(Position):
        """Adds the embedding of the next token."""

        def embed(self, x, position_ids):
            return x + x.roll(-1, dims=1)

    monkeypatch.setitem(POSITIONS, "ahead", Ahead)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"ahead"})
    restrict("ahead")
    assert [check.message.split(": ")[-1] for check in leaks(lab.run(length=5))] == [
        "kind=transformer position.kind=ahead",
        "kind=decoder-only position.kind=ahead",
    ]


def test_registered_position_that_raises_is_reported(lab, monkeypatch, restrict):
    class Odd(Position):
        """Raises an error when it is built."""

        def __init__(self, *sizes):
            raise UserError(f'no "odd" slots for {sizes[0]}: choose another')

    monkeypatch.setitem(POSITIONS, "odd", Odd)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"odd"})
    restrict("odd")
    notes = lab.run(length=3).notes
    assert "skipped: 1 of kind decoder-only: no slots for 16" in notes


def test_equivalent_answer_passes(lab):
    def mask(new, cached):
        return torch.ones(new, cached + new, dtype=torch.bool).tril(cached)

    assert all(check.passed for check in lab.exercise.grade(mask))


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (lambda new, cached: torch.ones(new, cached + new).bool(), "reaches new token"),
        (
            lambda new, cached: torch.ones(new, cached + new).bool().tril(),
            "does not reach new token",
        ),
        (
            lambda new, cached: torch.ones(new, cached + new).bool().tril(cached + 1),
            "reaches new token",
        ),
        (
            lambda new, cached: torch.ones(new, cached + new).bool().tril(cached - 1),
            "does not reach",
        ),
        (
            lambda new, cached: ~torch.ones(new, cached + new).bool().tril(cached),
            "reaches new token",
        ),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    checks = [check for check in lab.exercise.grade(wrong) if not check.passed]
    assert checks
    assert any(explanation in check.message and "cached = " in check.message for check in checks)
