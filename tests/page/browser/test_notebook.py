"""Pages in a notebook: what IPython would display, in the middle of another page."""

from pathlib import Path

import pytest

from regard.api import from_loaded
from regard.page import build, notebook, pack
from tests.page.conftest import translator

SHELL = "<!doctype html><title>notebook</title><p>In [1]:</p>{}<p>In [2]:</p>"


@pytest.fixture(scope="module")
def model():
    return from_loaded(translator("transformer-1"))


@pytest.fixture(scope="module")
def translation(model):
    return model.translate(["ABCD"], beam=4, nbest=2)[0]


@pytest.fixture(scope="module")
def open_frame(open_view, tmp_path_factory):
    def open_page(page: str):
        file = tmp_path_factory.mktemp("notebook") / "notebook.html"
        file.write_text(SHELL.format(notebook.frame(page)), "ascii")
        view = open_view(file, "iframe")
        frame = view.page.frame_locator("iframe")
        frame.locator(".token").first.wait_for()
        return view, frame

    return open_page


@pytest.fixture(scope="module")
def shown(open_frame, translation):
    return open_frame(notebook.render_translation(translation))


def test_a_translation_shows_its_tokens_and_weights(shown, translation):
    _, frame = shown
    assert frame.locator(".result").inner_text() == translation.text
    outputs = frame.locator(".tokens").nth(1).locator("button")
    assert outputs.count() == len(translation.target)
    outputs.nth(1).click()
    weights = translation.attention["cross"].mean(1)[-1, 1]
    assert frame.locator(".weights .number").first.inner_text() == f"{weights.max():.2f}"


def test_layers_heads_and_lines(shown, translation):
    _, frame = shown
    layers, heads = translation.attention["encoder"].shape[:2]
    frame.locator('[data-control="mechanism"]').select_option("encoder")
    assert frame.locator('[data-control="layer"] option').count() == layers
    assert frame.locator('[data-control="head"] option').count() == heads + 2
    frame.locator('[data-control="head"]').select_option("0")
    frame.locator('[data-control="view-lines"]').check(force=True)
    frame.locator(".figure").focus()
    frame.locator(".figure").press("ArrowDown")
    frame.locator(".figure").press("ArrowRight")
    assert "→" in frame.locator(".readout").inner_text()


def test_nothing_that_needs_the_model_is_offered(shown):
    _, frame = shown
    for selector in ("#input", '[data-control="paint"]', '[data-control="ablate"]', ".mover"):
        assert frame.locator(selector).count() == 0
    assert frame.locator('[data-control="link"]').count() == 0


def test_the_nbest_list(shown, translation):
    _, frame = shown
    frame.locator(".model select").select_option("1")
    other = translation.alternatives[0]
    frame.locator(".panel").get_by_text(other.text, exact=True).first.wait_for()
    assert frame.locator(".result").inner_text() == other.text
    frame.locator(".model select").select_option("0")


def test_saving(shown):
    view, frame = shown
    with view.page.expect_download() as download:
        frame.locator('[data-control="svg"]').click()
    assert Path(download.value.path()).read_text("utf-8").startswith("<svg")


def test_a_model_translates_in_its_frame(open_frame, model):
    packed = build.Pack(*pack.pack(model, "mine", True))
    _, frame = open_frame(build.render([packed], title="mine"))
    for text in ("ABCD", "DDA"):
        frame.locator("#input").fill(text)
        expected = model.translate([text])[0].text
        frame.locator(".panel").get_by_text(expected, exact=True).first.wait_for()
