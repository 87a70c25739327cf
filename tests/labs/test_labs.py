"""Properties of every lab: it passes, repeats, rejects wrong parameters, can be drawn, graded and printed."""

import json

import pytest

from regard import UserError
from regard.labs import LABS, Check


@pytest.fixture(scope="module", params=LABS.values(), ids=LABS.keys())
def lab(request):
    """One lab after the other: all laws of one, then of the next."""
    return request.param


@pytest.fixture(scope="module")
def result(lab, small):
    """One short run, shared by all laws."""
    return lab.run(**small(lab))


def test_it_passes(lab, result):
    assert result.checks
    assert result.passed, [check.message for check in result.checks if not check.passed]


def test_its_words(lab, result):
    assert lab.claim == lab.claim.strip()
    assert not lab.claim.endswith(".")
    assert lab.derivation.strip()
    assert len(set(result.table.columns)) == len(result.table.columns)
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)


def test_every_knob_is_told_with_its_range(lab):
    for name, parameter in lab.parameters.model_fields.items():
        assert parameter.description, name
        assert not parameter.is_required(), name


def test_a_result_is_plain_json(lab, result):
    json.dumps(result.figures, allow_nan=False)
    document = json.loads(json.dumps(result.document, allow_nan=False))
    assert document["name"] == lab.name
    assert document["passed"] is True
    assert document["figures"]


def test_the_same_seed_gives_the_same_figures(lab, result):
    if lab.quick:
        pytest.skip("trained or timed: too long to run twice")
    assert lab.run().figures == result.figures


def test_a_wrong_knob_gets_a_sentence(lab):
    with pytest.raises(UserError, match=rf"lab {lab.name}: nosuch: unknown key"):
        lab.run(nosuch=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_drawn(lab, result, theme, tmp_path):
    from regard.diagrams import save

    figure = lab.plot(result, theme)
    for panel in figure.axes:
        labelled = panel.get_xlabel() or panel.get_ylabel() or not panel.axison
        assert labelled or panel.get_label() == "<colorbar>", "a panel says what it shows"
    save(figure, tmp_path / "lab.png")
    assert (tmp_path / "lab.png").stat().st_size > 10_000


def test_our_answer_passes(lab):
    remarks = list(lab.exercise.grade(lab.exercise.solution))
    assert remarks
    assert all(isinstance(remark, Check) and remark.passed for remark in remarks)
    assert all(remark.hint for remark in remarks)


def test_the_starter_has_the_answers_name_and_says_nothing(lab):
    names: dict = {}
    exec(lab.exercise.starter, names)
    written = names[lab.exercise.function]
    assert written.__doc__
    with pytest.raises(NotImplementedError):
        list(lab.exercise.grade(written))
