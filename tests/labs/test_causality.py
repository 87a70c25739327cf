"""Causality: every model is tried, and one future token, leaked anywhere, is noticed."""

from itertools import islice

import pytest
import torch

from regard import UserError, config
from regard.attention import HEADS, NORMALISERS, POSITIONS, SCORES, Position
from regard.attention.positions import SCALINGS
from regard.labs import LABS, causality
from regard.labs.config_variants import list_variants, table_variants
from regard.models.build import CELLS, DECODERS, FEEDS, NORMS
from regard.models.cells import Cell
from regard.models.mixers import Causal
from regard.models.stack import Stacked


@pytest.fixture(scope="module")
def tried():
    refused = set(LABS["causality"].run(length=2).figures["left_out"])
    found = [choice for choice in causality.every() if choice.name not in refused]
    return [config.Config(model=choice.value).model for choice in found]


def in_field(tried, kind, *fields):
    """The values of a field that models of a kind have."""
    found = [table for table in tried if table.kind == kind]
    for field in fields:
        found = [getattr(table, field) for table in found if hasattr(table, field)]
    return set(found)


@pytest.mark.parametrize("kind", ["transformer", "decoder-only"])
def test_every_choice_of_a_stack_is_tried(tried, kind):
    assert in_field(tried, kind, "position", "kind") == {*POSITIONS, "interleaved"}
    assert in_field(tried, kind, "position", "scaling") == set(SCALINGS)
    assert in_field(tried, kind, "position", "form") == {"bias", "query"}
    assert in_field(tried, kind, "attention", "kind") == set(HEADS)
    assert in_field(tried, kind, "attention", "score", "kind") == set(SCORES)
    assert in_field(tried, kind, "attention", "normaliser", "kind") == set(NORMALISERS)
    assert in_field(tried, kind, "attention", "kv_heads") == {None, 1, 2}
    assert in_field(tried, kind, "attention", "window") == {None, 1, 2}
    assert in_field(tried, kind, "mixer", "kind") == {"attention", "state-space"}
    assert in_field(tried, kind, "activation") == set(FEEDS)
    assert in_field(tried, kind, "norm") == set(NORMS)
    assert in_field(tried, kind, "norm_position") == {"before", "after"}
    together = {
        (table.attention.kind, table.position.kind) for table in tried if table.kind == kind
    }
    assert ("latent", "rotary") in together


def test_every_choice_of_a_recurrent_model_is_tried(tried):
    kind = "recurrent"
    assert in_field(tried, kind, "cell") == set(CELLS)
    assert in_field(tried, kind, "decoder", "kind") == set(DECODERS)
    assert in_field(tried, kind, "attention", "kind") == {"single-head", "none"}
    assert in_field(tried, kind, "attention", "score", "kind") == set(SCORES)
    assert in_field(tried, kind, "attention", "normaliser", "kind") == set(NORMALISERS)
    assert in_field(tried, kind, "encoder", "position", "kind") == {"none", "sinusoidal", "learned"}


def test_what_is_left_out_is_told_with_its_reason(lab):
    result = lab.run(length=2)
    found = result.figures
    names = [choice.name for choice in causality.every()]
    assert sorted(found["names"] + found["left_out"]) == sorted(names)
    assert {"kind=pretrained", "kind=recurrent encoder.position.kind=alibi"} < set(
        found["left_out"]
    )
    assert result.notes == result.to_dict()["notes"]
    assert sum(int(note.split()[2]) for note in result.notes) == len(found["left_out"])
    assert any(
        note.endswith("of kind pretrained: its name has no default, so there is none to build")
        for note in result.notes
    )
    why = "the position speaks in self-attention, which a recurrent encoder has not"
    assert f"left out: 11 of kind recurrent: {why}" in result.notes


def test_choices_are_told_as_one_would_set_them():
    found = {choice.name: choice.value for choice in list_variants(config.Rotary)}
    assert list(found) == [
        "kind=rotary",
        *(f"kind=rotary scaling={scaling}" for scaling in list(SCALINGS)[1:]),
    ]
    for value in found.values():
        config.Rotary.model_validate(value)


@pytest.fixture
def few(monkeypatch):
    """The plainest of each kind, and those whose settings hold a word."""

    def only(word=None):
        def some(family):
            yield from islice(table_variants(family), 1)
            yield from (choice for choice in table_variants(family) if word and word in choice.name)

        monkeypatch.setattr(causality, "table_variants", some)
        monkeypatch.setattr(causality, "kind_pairs", lambda family: ())

    return only


def leaks(result):
    return [c for c in result.checks if not c.passed and c.name.startswith("largest change before")]


def test_a_mask_that_shows_the_next_token_is_noticed(lab, monkeypatch, few):
    few()
    assert lab.run(length=5).passed
    monkeypatch.setattr(
        "regard.models.stack.causal_mask", lambda q, k: k[..., None, :] <= q[..., :, None] + 1
    )
    result = lab.run(length=5)
    names = " ".join(check.message for check in leaks(result))
    assert not result.passed
    assert "The future leaks in: kind=transformer" in names
    assert "The future leaks in: kind=decoder-only" in names
    assert "kind=recurrent" not in names


@pytest.mark.parametrize(
    ("part", "word", "noticed"),
    [(Causal, "state-space", "mixer.kind=state-space"), (Cell, None, "kind=recurrent")],
)
def test_a_state_that_has_read_on_is_noticed(lab, monkeypatch, few, part, word, noticed):
    few(word)
    forward = part.forward
    monkeypatch.setattr(
        part, "forward", lambda self, x, *rest: forward(self, x.roll(-1, dims=1), *rest)
    )
    assert any(noticed in check.message for check in leaks(lab.run(length=5)))


def test_a_model_that_reads_nothing_is_noticed(lab, monkeypatch, few):
    few()
    embed = Stacked._embed
    monkeypatch.setattr(Stacked, "_embed", lambda *given: 0 * embed(*given) + 1)
    result = lab.run(length=5)
    assert not leaks(result)
    dull = [check.message for check in result.checks if not check.passed]
    assert len(dull) == 2
    assert all("A token is read and nothing comes of it: kind=" in told for told in dull)


def test_a_users_own_position_is_tried_too(lab, monkeypatch, few):
    class Ahead(Position):
        """Adds what stands at the next place."""

        def embed(self, x, at):
            return x + x.roll(-1, dims=1)

    monkeypatch.setitem(POSITIONS, "ahead", Ahead)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"ahead"})
    few("ahead")
    found = leaks(lab.run(length=5))
    assert [check.message.split(": ")[-1] for check in found] == [
        "kind=transformer position.kind=ahead",
        "kind=decoder-only position.kind=ahead",
    ]


def test_a_users_own_position_that_is_refused_is_told_too(lab, monkeypatch, few):
    class Odd(Position):
        """Speaks in self-attention, and refuses to."""

        def __init__(self, *sizes):
            raise UserError(f'no "odd" places for {sizes[0]}: give it a rest')

    monkeypatch.setitem(POSITIONS, "odd", Odd)
    monkeypatch.setitem(config.EXTENSIONS, "position", {"odd"})
    few("odd")
    told = lab.run(length=3).notes
    assert "left out: 1 of kind decoder-only: no places for 16" in told


def test_another_right_answer(lab):
    def mask(new, read):
        return torch.ones(new, read + new, dtype=torch.bool).tril(read)

    assert all(remark.passed for remark in lab.exercise.grade(mask))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda new, read: torch.ones(new, read + new).bool(), "reaches new token"),
        (lambda new, read: torch.ones(new, read + new).bool().tril(), "does not reach new token"),
        (lambda new, read: torch.ones(new, read + new).bool().tril(read + 1), "reaches new token"),
        (lambda new, read: torch.ones(new, read + new).bool().tril(read - 1), "does not reach"),
        (lambda new, read: ~torch.ones(new, read + new).bool().tril(read), "reaches new token"),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, told):
    remarks = [remark for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert remarks
    assert any(told in remark.message and "read = " in remark.message for remark in remarks)
