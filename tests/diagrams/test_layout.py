"""Cells and labels that fit."""

import pytest

from regard.diagrams.figures import ONE
from regard.diagrams.layout import axes, cells, lines
from regard.diagrams.tokens import labels


def test_cells_are_square_where_possible() -> None:
    width, height = cells(100, 120, ONE)
    assert width == height == pytest.approx(8 / 120)


def test_one_row_is_not_a_hairline() -> None:
    width, height = cells(200, 1, ONE)
    assert width == pytest.approx(10 / 200)
    assert height >= 0.3


def test_fonts_shrink_before_labels_are_left_out() -> None:
    few, middle, many = (axes(labels(["word"] * n), labels(["w"]), ONE)[0] for n in (10, 67, 200))
    smallest, largest = ONE.font
    assert (few.size, few.step) == (largest, 1)
    assert smallest < middle.size < largest
    assert middle.step == 1
    assert many.size == smallest
    assert many.step > 1


def test_words_turn_and_letters_stay_upright_beside_a_turned_special() -> None:
    words, _ = axes(labels(["Fahrplan", "am", ","] * 5), labels(["x"]), ONE)
    assert words.turned[:3] == (True, True, False)
    letters, _ = axes(labels([*"abcdefghij", "<end>"]), labels(["x"]), ONE)
    assert letters.turned == (*(False,) * 10, True)
    fitting, _ = axes(labels(["cat"]), labels(["x"]), ONE)
    assert fitting.turned == (False,)


def test_a_title_breaks_at_spaces_and_ends_in_an_ellipsis() -> None:
    assert lines("short", 15.0, 5.0) == ["short"]
    two = lines("a title that is rather too long for one line", 15.0, 3.0)
    assert len(two) == 2
    assert " ".join(two) == "a title that is rather too long for one line"
    assert lines("word " * 50, 15.0, 3.0)[-1].endswith("…")
    assert lines("x" * 500, 15.0, 3.0)[0].endswith("x…")
