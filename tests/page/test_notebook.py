"""`translation.show()` and `model.page()` in a notebook, where IPython displays HTML."""

import html
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from regard.api import from_loaded
from regard.errors import UserError
from regard.page import notebook
from tests.page.conftest import translator


@pytest.fixture(scope="module")
def model():
    return from_loaded(translator("transformer-1"))


@pytest.fixture(scope="module")
def translation(model):
    return model.translate(["ABC"], beam=3, nbest=2)[0]


@pytest.fixture
def displayed(monkeypatch) -> list[str]:
    """What a notebook was given to display."""
    shown: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    display.display = lambda data, raw: shown.append(data["text/html"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def page_inside(frame: str) -> str:
    [page] = re.findall(r'srcdoc="([^"]*)"', frame)
    return html.unescape(page)


def test_show(translation, displayed):
    assert translation.show() is None
    [frame] = displayed
    assert frame.isascii()
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert 'height="760"' in frame
    page = page_inside(frame)
    assert page == notebook.render_translation(translation)
    assert 'id="translations"' in page
    assert 'id="engine"' not in page
    assert 'id="weights-0"' not in page
    assert len(page) < 400_000


def test_a_frame_keeps_every_character(displayed):
    page = '<p title="ä">&amp; \u2028 – "</p>'
    notebook.show(page, 100)
    assert page_inside(displayed[0]) == page


def test_page(model, displayed):
    model.page(height=500, name="mine")
    [frame] = displayed
    assert 'height="500"' in frame
    page = page_inside(frame)
    assert 'id="weights-0"' in page
    assert "<title>mine · Regard</title>" in page


def test_without_weights(translation, displayed):
    with pytest.raises(UserError, match="attention=True"):
        replace(translation, weights=None).show()
    assert displayed == []


@pytest.mark.parametrize("height", [0, -5])
def test_height(translation, displayed, height):
    with pytest.raises(UserError, match="height is a number of pixels, 1 or more: got"):
        translation.show(height)


def test_ipython_is_missing(translation, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(UserError, match=r"IPython is not installed: .* regard page RUN"):
        translation.show()


def test_not_in_a_notebook(translation, displayed, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    with pytest.raises(UserError, match=r"this Python is not a notebook: .* regard page RUN"):
        translation.show()
    assert displayed == []
