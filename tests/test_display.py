"""Progress output: the estimate of the time left."""

import io
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from regard import display
from regard.display import Display, format_duration
from regard.terminal import Console


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (89.4, "89 s"), (91.0, "2 min"), (3600.0, "60 min"), (7500.0, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_time_left_counts_from_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run starts at a half, and did that half in another session."""
    times = chain([100.0], repeat(110.0))
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=times.__next__))
    progress = Display(Console(file=io.StringIO()))
    assert progress.time_left == ""
    progress.update(0.5, "")
    assert progress.time_left == ""
    progress.update(0.6, "")
    assert progress.time_left == "about 40 s left"
    progress.update(1.0, "")
    assert progress.time_left == ""


def test_the_progress_bar_shows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 30.0])
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=times.__next__))
    screen = Display(Console(file=io.StringIO(), force_terminal=True))
    screen.update(0.0, "step 0")
    screen.update(0.25, "step 5")
    assert screen.bar
    assert screen.bar.tasks[0].description == "step 5  about 2 min left"
