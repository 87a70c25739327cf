"""Properties of every lab: it passes, repeats, rejects wrong parameters, can be drawn, graded and printed."""

import itertools
import json
import math

import pytest
import torch

from regard import UserError
from regard.labs import LABS, Check
from regard.labs.grading.worker.wire import decode, encode
from regard.labs.grading.worksheet import GradeReport, RemoteFunction, grade_answer


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


def test_effect_is_absent_where_the_lab_says_so(lab, absent):
    result = lab.run(**absent(lab))
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


def poison(value):
    """The value with NaN in each of its places in turn (in the first 20 of a tensor)."""
    if isinstance(value, torch.Tensor):
        for i in range(min(value.numel(), 20)):
            poisoned = value.to(torch.float64, copy=True)
            poisoned.view(-1)[i] = math.nan
            yield poisoned
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from ([*value[:i], wrong, *value[i + 1 :]] for wrong in poison(part))
    else:
        yield math.nan


def grade_with_nan(exercise, call, place):
    """Grade the solution with a NaN in one place of the result of one call; None if it has no such place."""
    results = itertools.count()
    reached = False

    def answer(encoded, _):
        nonlocal reached
        result = exercise.solution(*decode(encoded))
        if next(results) == call:
            result = list(poison(result))[
                place
            ]  # IndexError, which ends the grading, if there is none
            reached = True
        return decode(json.loads(json.dumps(encode(result))))

    checks, remark = grade_answer(exercise, RemoteFunction(exercise, answer))
    return GradeReport("", "", "", checks, remark, "", 0.0) if reached else None


def test_solution_with_a_nan_anywhere_never_passes(lab):
    """In each of the first calls, in each place: a check that looks elsewhere must not let it pass."""
    for call in range(3):
        reports = [grade_with_nan(lab.exercise, call, place) for place in range(20)]
        reports = [report for report in reports if report]
        assert reports or call, "the first call returns a result"
        assert not any(report.passed for report in reports)
        assert all("returned NaN" in report.remark for report in reports)


def test_answer_of_nan_fails_a_check_of_its_own(lab):
    """`grade` alone, without the rejection of NaN before it: at least one check fails, or it raises."""

    def all_nan(*args):
        return fill_with_nan(lab.exercise.solution(*args))

    try:
        checks = list(lab.exercise.grade(all_nan))
    except ValueError:  # NaN as an integer
        return
    assert not all(check.passed for check in checks)


def fill_with_nan(value):
    if isinstance(value, torch.Tensor):
        return torch.full(value.shape, math.nan, dtype=torch.float64)
    if isinstance(value, list | tuple):
        return [fill_with_nan(part) for part in value]
    return math.nan


@pytest.mark.parametrize("relation", ["=", "<=", ">="])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_passes_no_check(relation, place):
    values = [1.0, 1.0]
    values.insert(place, math.nan)
    assert not Check("x", math.nan, relation, 1.0, tolerance=math.inf).passed
    assert Check.worst("x", [1.0, 1.0], relation, 1.0).passed
    assert not Check.worst("x", values, relation, 1.0).passed
    assert not Check.worst("x", [], relation, 1.0).passed


def test_starter_has_the_name_of_the_solution_and_is_not_implemented(lab):
    namespace: dict = {}
    exec(lab.exercise.starter, namespace)
    function = namespace[lab.exercise.function]
    assert function.__doc__
    with pytest.raises(NotImplementedError):
        list(lab.exercise.grade(function))
