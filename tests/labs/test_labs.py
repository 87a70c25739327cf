"""Properties of every lab: it passes, repeats, rejects wrong parameters, can be drawn, graded and printed."""

import json

import pytest

from regard import UserError
from regard.labs import LABS, Check


@pytest.fixture(scope="module", params=LABS.values(), ids=LABS.keys())
def lab(request):
    """Every lab; module scope groups the tests by lab."""
    return request.param


@pytest.fixture(scope="module")
def result(lab, small):
    """One short run, shared by all tests of a lab."""
    return lab.run(**small(lab))


def test_lab_passes(lab, result):
    assert result.checks
    assert result.passed, [check.message for check in result.checks if not check.passed]


def test_effect_is_absent_where_the_lab_says_so(lab, small):
    result = lab.run(**small(lab) | lab.absent)
    assert result.law_holds, [check.message for check in result.law if not check.passed]
    assert not result.effect_is_present
    assert not result.passed


def test_claim_derivation_and_table_are_well_formed(lab, result):
    assert lab.claim == lab.claim.strip()
    assert not lab.claim.endswith(".")
    assert lab.derivation.strip()
    assert len(set(result.table.columns)) == len(result.table.columns)
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)


def test_every_parameter_has_description_and_default(lab):
    for name, parameter in lab.parameters.model_fields.items():
        assert parameter.description, name
        assert not parameter.is_required(), name


def test_result_is_valid_json(lab, result):
    json.dumps(result.figures, allow_nan=False)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["name"] == lab.name
    assert document["passed"] is True
    assert document["figures"]


def test_same_seed_gives_same_figures(lab, result):
    if lab.quick:
        pytest.skip("trains or times models: too slow to run twice")
    assert lab.run().figures == result.figures


def test_unknown_parameter_raises_user_error(lab):
    with pytest.raises(UserError, match=rf"lab {lab.name}: nosuch: unknown key"):
        lab.run(nosuch=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lab_can_be_plotted(lab, result, theme, tmp_path):
    from regard.diagrams import save

    figure = lab.plot(result, theme)
    for panel in figure.axes:
        labelled = panel.get_xlabel() or panel.get_ylabel() or not panel.axison
        assert labelled or panel.get_label() == "<colorbar>", "every panel needs an axis label"
    if theme == "light":
        save(figure, tmp_path / "lab.png")
        assert (tmp_path / "lab.png").stat().st_size > 10_000


def test_solution_passes(lab):
    checks = list(lab.exercise.grade(lab.exercise.solution))
    assert checks
    assert all(isinstance(check, Check) and check.passed for check in checks)
    assert all(check.hint for check in checks)


def test_starter_has_the_name_of_the_solution_and_is_not_implemented(lab):
    namespace: dict = {}
    exec(lab.exercise.starter, namespace)
    function = namespace[lab.exercise.function]
    assert function.__doc__
    with pytest.raises(NotImplementedError):
        list(lab.exercise.grade(function))
