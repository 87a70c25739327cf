"""The page: whole, offline, and safe whatever the tokens hold."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from regard.diagrams import THEMES, page
from regard.errors import UserError

NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script x",
    "</script x",
    "<img src=x onerror=alert(1)>",
    "\"'&",
    "{{data}}",
]
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Document(HTMLParser):
    """What a browser would see: the tree is checked for balance while it is read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_nothing_in_a_token_or_a_title_becomes_markup() -> None:
    weights = np.full((2, 3, 6, 6), 0.2)
    plain = Document(page(weights, list("abcdef"), list("uvwxyz"), title="t"))
    nasty = Document(page(weights, NASTY, NASTY, title=NASTY[0]))
    assert nasty.tags == plain.tags
    assert nasty.texts["h1"] == [NASTY[0]]
    assert "<" not in nasty.texts["script"][0]
    data = json.loads(nasty.texts["script"][0])
    assert [token["text"] for token in data["source"]] == NASTY
    assert [token["text"] for token in data["target"]] == NASTY


def test_the_page_carries_every_layer_and_head() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 3, 5))
    source = [" ", "<end>", *"abcde"]
    data = json.loads(Document(page(weights, source, list("vwxyz"))).texts["script"][0])
    assert np.array(data["weights"]) == pytest.approx(weights, abs=1e-4)
    assert data["source"][:2] == [
        {"text": "␣", "dimmed": True},
        {"text": "<end>", "dimmed": True},
    ]
    assert (data["layer"], data["head"]) == (1, "mean")
    assert set(data["themes"]) == set(THEMES)


def test_the_page_needs_nothing_from_outside() -> None:
    text = page([[[[1.0]]]], ["a"], ["b"])
    document = Document(text)
    assert not re.search(r"https?:|//\w|@import|url\(", text)
    assert not {"src", "href"} & {name for name, _ in document.attributes}
    assert "prefers-color-scheme: dark" in text


def test_weights_out_of_0_and_1_say_so() -> None:
    assert "scaled to the data" in page([[[[-3.0]]]], ["a"], ["b"])
    assert "scaled to the data" not in page([[[[0.5]]]], ["a"], ["b"])


def test_a_wrong_shape_is_explained() -> None:
    with pytest.raises(UserError, match=r"\[layer head target source\], got \[1, 1\]"):
        page([[1.0]], ["a"], ["b"])


@pytest.mark.skipif(shutil.which("node") is None, reason="node reads the script")
def test_the_script_is_valid_javascript(tmp_path: Path) -> None:
    script = Document(page([[[[1.0]]]], ["a"], ["b"])).texts["script"][-1]
    (tmp_path / "page.js").write_text(script, "utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, timeout=30)
