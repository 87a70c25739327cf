"""Quality against a varied number: when there is a picture, and what its lines are."""

import math

import pytest

from regard.compare.plan import System
from regard.compare.quality import draw_quality, line_of, number, numbers
from regard.diagrams import charts


def systems(*settings: str, preset: str = "case") -> list[System]:
    """One for each 'a=1 b=2'."""
    return [System(preset, tuple(words.split()), f"{preset}, {words}") for words in settings]


def test_the_one_varied_number():
    found = numbers(systems("data.fraction=1", "data.fraction=0.1", "data.fraction=1e-2"))
    assert found is not None
    assert found[0] == "data.fraction"
    assert list(found[1].values()) == [1.0, 0.1, 0.01]


@pytest.mark.parametrize(
    "settings",
    [
        ["a=1", "a=2"],  # two make no line
        ["a=1", "a=2", "a=two", "a=3"],  # not a number throughout
        [f"a={a} b={b}" for a in (1, 2, 3) for b in (1, 2, 3)],  # along which?
        ["cell=gru", "cell=rnn", "cell=lstm"],
        [""],
    ],
)
def test_no_picture_otherwise(settings, tmp_path):
    assert numbers(systems(*settings)) is None
    (tmp_path / "quality.png").write_text("an older one")
    assert draw_quality(systems(*settings), [], tmp_path) is None
    assert not (tmp_path / "quality.png").exists()


def test_a_second_key_with_few_values_makes_lines():
    found = systems(*(f"model.d_model={w} seedless.heads={h}" for h in (2, 4) for w in (8, 16, 32)))
    key, values = numbers(found) or ("", {})
    assert key == "model.d_model"
    assert len(values) == 6
    assert [line_of(system, key) for system in found[2:4]] == ["case, heads 2", "case, heads 4"]
    assert line_of(System("own/mine.toml", ("a=1",), "x"), "a") == "mine"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), (" 7", 7.0), ("nan", None), ("inf", None), ("1,5", None)]
)
def test_numbers(text, value):
    assert number(text) == value


def drawn(monkeypatch, found, results, folder):
    """What the chart was given."""
    given = {}
    real = charts.chart

    def chart(panels, **words):
        given.update(panels=panels, **words)
        return real(panels, **words)

    monkeypatch.setattr(charts, "chart", chart)
    assert draw_quality(found, results, folder, "dark") == folder / "quality.png"
    assert (folder / "quality.png").read_bytes().startswith(b"\x89PNG")
    return given


def test_the_lines(monkeypatch, tmp_path):
    wanted = systems(
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
        for n, system in enumerate(wanted)
    ]
    del results[1]  # a run that failed has no results
    given = drawn(monkeypatch, wanted, results, tmp_path)
    assert given["ticks"] == [0.01, 0.1, 1.0]
    assert given["theme"] == "dark"
    bleu, bits = given["panels"].values()
    assert [line.label for line in bleu] == [line.label for line in bits]
    lines = {line.label: line for line in bleu}
    assert list(lines["case, cell rnn"].x) == [0.1, 1.0]  # in the number's order
    assert lines["case, cell rnn"].values == [[21, 22], [1, 2]]
    assert lines["case, cell rnn"].means == [21.5, 1.5]
    assert lines["case, cell gru"].values == [[31, 32]]
    assert math.isclose(bits[0].values[0][0], 2.125)
