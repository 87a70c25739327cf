"""Labs for a page: which settings are measured, their plots, and the file."""

import base64
import gzip
import json
import re
from xml.etree import ElementTree

import pytest

from regard.diagrams.themes import THEMES
from regard.labs import LABS, Lab
from regard.page import labs, plots
from tests.stories.conftest import run_command as regard

QUICK = [lab.name for lab in labs.quick_labs()]


def unpack(text: str):
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(params=QUICK)
def lab(request) -> Lab:
    return LABS[request.param]


def test_quick_labs_train_and_time_nothing():
    assert {name for name, lab in LABS.items() if lab.quick} == LABS.keys() - set(QUICK)
    assert len(QUICK) >= 15


# --- settings -------------------------------------------------------------------------------------


def test_the_settings_are_valid_different_and_few(lab):
    points = labs.choose_points(lab)
    assert len(points) <= labs.MOST_POINTS
    assert points[0] == lab.parameters().model_dump()
    assert points[1] == points[0] | lab.absent
    assert all(point not in points[:number] for number, point in enumerate(points))
    for point in points:
        lab.validate_parameters(point)  # else an error


def test_every_parameter_moves_below_or_above_its_default(lab):
    points = labs.choose_points(lab)
    described = labs.describe_lab(lab, points)
    for parameter in described["parameters"]:
        assert len(parameter["values"]) >= 2
        assert parameter["values"] == sorted(parameter["values"])
        assert parameter["values"][parameter["default"]] == points[0][parameter["name"]]
        assert parameter["description"]


def test_indices_lead_back_to_the_settings(lab):
    points = labs.choose_points(lab)
    described = labs.describe_lab(lab, points)
    assert [
        {p["name"]: p["values"][i] for p, i in zip(described["parameters"], row, strict=True)}
        for row in described["points"]
    ] == points


def test_without_all_combinations_one_parameter_varies_at_a_time(lab):
    points = labs.choose_points(lab)
    if labs.describe_lab(lab, points)["complete"]:
        return
    for point in points[2:]:
        assert sum(point[name] != value for name, value in points[0].items()) == 1


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ({"type": "integer", "default": 8, "minimum": 3, "maximum": 20}, [3, 4, 16, 20]),
        ({"type": "integer", "default": 8, "multipleOf": 4, "minimum": 4}, [4, 4, 16, 32]),
        ({"type": "number", "default": 3.0, "minimum": 0, "maximum": 10}, [0.75, 1.5, 6, 10]),
        ({"type": "number", "default": 1e-6, "maximum": 0.1}, [1e-8, 1e-7, 1e-5, 1e-4]),
    ],
)
def test_values_come_from_the_default_and_the_range(field, values):
    assert list(labs.scale(field, labs.STEPS[0])) == values


# --- plots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "themes"), [("copying", {"both"}), ("nope", {*THEMES})])
def test_a_plot_needs_only_glyphs_and_colours(name, themes):
    glyphs: plots.Glyphs = {}
    pictures = plots.draw_svg(LABS[name], LABS[name].run(), glyphs)
    assert pictures.keys() == themes
    count = len(plots.palette(THEMES["light"]))
    for svg in pictures.values():
        ElementTree.fromstring(svg)
        ids = set(re.findall(r' id="([^"]+)"', svg))
        links = re.findall(r'href="(?!data:image/png;base64,)([^"]+)"', svg)
        assert links
        assert all(link.removeprefix("#") in ids | glyphs.keys() for link in links)
        assert all(int(place) < count for place in re.findall(r"@(\d+)@", svg))
        assert not re.search(r"<script|<!DOCTYPE|on\w+=|<foreignObject", svg)
    if themes == {"both"}:
        assert not plots.COLOUR.findall(pictures["both"])
        assert "@" in pictures["both"]
    assert all(outline for outline in glyphs.values())


def test_the_second_theme_has_the_layout_that_it_would_have_alone():
    lab = LABS["nope"]
    result = lab.run()
    with plots.matplotlib.rc_context(plots.OPTIONS):
        pictures = plots.draw_twice(lab, result)
        alone = plots.to_svg(plots.draw(lab, result, THEMES["dark"]))
    assert plots.shorten(pictures["dark"]) == plots.shorten(alone)


def test_colours_have_the_same_places_in_every_theme():
    palettes = [plots.palette(theme) for theme in THEMES.values()]
    assert len({len(palette) for palette in palettes}) == 1
    placeholders = plots.palette(plots.placeholder_theme())
    assert len(placeholders) == len(set(placeholders)) == len(palettes[0])


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    """Two labs, the first two settings of each."""
    choose = labs.choose_points
    monkeypatch.setattr(labs, "choose_points", lambda lab: choose(lab)[:2])
    monkeypatch.setattr(labs, "quick_labs", lambda: [LABS["copying"], LABS["polynomial"]])


def test_what_is_measured_is_what_the_lab_finds(few):
    reports = []
    data = labs.measure_labs(labs.quick_labs(), lambda *report: reports.append(report))
    assert reports == [(n, 4, name) for n, name in enumerate(["copying", "polynomial"] * 2)]
    for described, lab in zip(data["labs"], labs.quick_labs(), strict=True):
        results = unpack(described["results"])
        assert [result["effect_is_present"] for result in results] == [True, False]
        for result, point in zip(results, labs.choose_points(lab), strict=True):
            expected = lab.run(0, **point)
            assert result["law_holds"] == expected.law_holds
            for shown, check in zip(result["law"] + result["effect"], expected.checks, strict=True):
                assert (shown["name"], shown["passed"]) == (check.name, check.passed)
                assert float(shown["measured"]) == pytest.approx(check.measured, rel=1e-5)
            assert len(result["rows"]) == len(expected.table.rows)
    again = labs.measure_labs(labs.quick_labs())
    assert again == data


def test_export_without_a_run(few, tmp_path):
    result = regard("export", "--to", "page", "--labs", "--out", tmp_path / "labs.html")
    assert result.code == 0, result.err
    assert re.search(r"labs.html: 0.\d MB, 2 labs, 4 settings\n$", result.out)
    assert result.err == "labs: 0 of 4 settings measured\n"
    text = (tmp_path / "labs.html").read_text("utf-8")
    assert 'id="labs"' in text
    assert 'id="engine"' not in text


def test_page_of_labs(few, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    assert ", 2 labs, 4 settings" in regard("page", "--labs").out
