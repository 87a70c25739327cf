"""Quality against a varied number: when it is plotted, and which lines the plot has."""

import math

import pytest

from regard.compare.plan import System
from regard.compare.quality import draw_quality, find_numeric_axis, line_label, parse_number
from regard.diagrams import charts


def systems(*settings: str, preset: str = "case") -> list[System]:
    """One system for each 'a=1 b=2'."""
    return [System(preset, tuple(text.split()), f"{preset}, {text}") for text in settings]


def test_the_numeric_axis():
    axis = find_numeric_axis(systems("data.fraction=1", "data.fraction=0.1", "data.fraction=1e-2"))
    assert axis is not None
    assert axis[0] == "data.fraction"
    assert list(axis[1].values()) == [1.0, 0.1, 0.01]


@pytest.mark.parametrize(
    "settings",
    [
        ["a=1", "a=2"],  # two values are too few
        ["a=1", "a=2", "a=two", "a=3"],  # not all are numbers
        [f"a={a} b={b}" for a in (1, 2, 3) for b in (1, 2, 3)],  # two candidates
        ["cell=gru", "cell=rnn", "cell=lstm"],
        [""],
    ],
)
def test_otherwise_nothing_is_drawn(settings, tmp_path):
    assert find_numeric_axis(systems(*settings)) is None
    (tmp_path / "quality.png").write_text("an older plot")
    assert draw_quality(systems(*settings), [], tmp_path) is None
    assert not (tmp_path / "quality.png").exists()


def test_a_second_key_with_two_values_makes_lines():
    varied = systems(
        *(f"model.d_model={w} seedless.heads={h}" for h in (2, 4) for w in (8, 16, 32))
    )
    key, values = find_numeric_axis(varied) or ("", {})
    assert key == "model.d_model"
    assert len(values) == 6
    assert [line_label(system, key) for system in varied[2:4]] == ["case, heads 2", "case, heads 4"]
    assert line_label(System("folder/name.toml", ("a=1",), "x"), "a") == "name"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), (" 7", 7.0), ("nan", None), ("inf", None), ("1,5", None)]
)
def test_parse_number(text, value):
    assert parse_number(text) == value


def draw_and_capture(monkeypatch, varied, results, folder):
    """Draw the plot; the arguments of `chart`."""
    arguments = {}
    original = charts.chart

    def chart(panels, **options):
        arguments.update(panels=panels, **options)
        return original(panels, **options)

    monkeypatch.setattr(charts, "chart", chart)
    assert draw_quality(varied, results, folder, "dark") == folder / "quality.png"
    assert (folder / "quality.png").read_bytes().startswith(b"\x89PNG")
    return arguments


def test_the_lines(monkeypatch, tmp_path):
    varied = systems(
        "share=1 cell=rnn", "share=0.01 cell=rnn", "share=0.1 cell=rnn", "share=1 cell=gru"
    )
    results = [
        {
            "system": system.label,
            "runs": [
                {"results": [{"bleu_lower": 10 * n + seed}], "bits_per_character": n + seed / 8}
                for seed in (1, 2)
            ],
        }
        for n, system in enumerate(varied)
    ]
    del results[1]  # a failed run has no results
    arguments = draw_and_capture(monkeypatch, varied, results, tmp_path)
    assert arguments["ticks"] == [0.01, 0.1, 1.0]
    assert arguments["theme"] == "dark"
    bleu, bits = arguments["panels"].values()
    assert [line.label for line in bleu] == [line.label for line in bits]
    lines = {line.label: line for line in bleu}
    assert list(lines["case, cell rnn"].x) == [0.1, 1.0]  # sorted by the number
    assert lines["case, cell rnn"].values == [[21, 22], [1, 2]]
    assert lines["case, cell rnn"].means == [21.5, 1.5]
    assert lines["case, cell gru"].values == [[31, 32]]
    assert math.isclose(bits[0].values[0][0], 2.125)
    results[0]["runs"][0]["bits_per_character"] = None  # a reference has an unknown word
    arguments = draw_and_capture(monkeypatch, varied, results, tmp_path)
    assert list(arguments["panels"]) == ["BLEU (lowercased)"]
