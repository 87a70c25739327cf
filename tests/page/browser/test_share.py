"""Saving pictures, and addresses that restore a view."""

import json
import struct
import xml.etree.ElementTree as ElementTree
from urllib.parse import parse_qs, urlparse

import pytest

from tests.page.browser.conftest import SENTENCE

FIELDS = {"text": SENTENCE, "decoding": "beam", "beam": 3, "model": "de-en", "layer": 2, "head": 3}


def save(view, kind, path):
    with view.page.expect_download() as download:
        view.control(kind).click()
    download.value.save_as(path)
    return path


@pytest.mark.parametrize("view", ["heatmap", "lines", "tree"])
def test_svg_has_every_token(view, double, tmp_path):
    double.restore(text="one two", model="first", decoding="beam", beam=2, view=view)
    root = ElementTree.parse(save(double, "svg", tmp_path / "a.svg")).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"eno", "owt", "<end>"} <= texts
    assert "first: eno owt" in texts


@pytest.mark.parametrize("view", ["heatmap", "lines", "tree"])
def test_png_is_a_picture(view, double, tmp_path):
    double.restore(text="one two", model="first", decoding="beam", beam=2, view=view)
    data = save(double, "png", tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 300
    assert height > 150
    assert len(data) > 3000


def test_the_address_restores_the_view(real, open_view, real_file):
    force = [{"what": "force", "step": 0, "token": "The"}]
    real.restore(**FIELDS, interventions=json.dumps(force), mechanism="encoder", view="lines")
    output = real.output()
    assert output.startswith("The")
    real.control("view-heatmap").check(force=True)
    address = parse_qs(urlparse(real.page.url).fragment)
    assert address["view"] == ["heatmap"]
    assert address["layer"] == ["2"]
    assert address["head"] == ["3"]
    assert json.loads(address["interventions"][0]) == force

    other = open_view(real_file)
    other.page.goto(real.page.url)
    other.page.reload()
    other.page.locator(".token").first.wait_for()
    other.settle()
    assert other.output() == output
    assert other.page.locator("#input").input_value() == SENTENCE
    assert other.control("mechanism").input_value() == "encoder"
    assert other.control("layer").input_value() == "1"
    assert other.control("head").input_value() == "2"
    assert other.page.locator('[data-control="decoding-beam"]').is_checked()


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a b", "model": "nobody", "layer": "-1", "head": "99"},
        {"text": "a b", "interventions": "{not json", "decoding": "magic", "beam": "1e9"},
        {"text": "a b", "interventions": '[{"what":"other"},7,null]', "view": "<b>"},
        {"text": "a b", "interventions": '[{"what":"mask"},{"what":"mask","keys":[-1]}]'},
        {"text": "a b", "interventions": '[{"what":"force","step":0,"token":7}]'},
        {"text": "a b", "interventions": '[{"what":"weights","step":0,"weights":{"0":"x"}}]'},
        {
            "text": "a b",
            "interventions": '[{"what":"ablate","layer":2},{"what":"ablate","head":4}]',
        },
        {"text": "a b", "interventions": '[{"what":"ablate","mechanism":"constructor"}]'},
    ],
)
def test_an_address_that_makes_no_sense_shows_a_plain_view(fields, double):
    double.restore(**fields)
    assert double.output() == "a b"
    assert double.page.locator(".changes").is_hidden()


def test_user_text_never_becomes_html(double):
    text = "<img src=x onerror=alert(1)> <b>x</b> </script><script>alert(2)</script>"
    double.restore(text=text, model="first")
    main = double.page.locator("main")
    assert main.locator("img, script, b").count() == 0
    assert "<b>x</b>" in double.tokens("source").all_inner_texts()
