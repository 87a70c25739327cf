"""The HTML document: self-contained, offline, and safe for any token text."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from regard.diagrams import THEMES, render_html
from regard.errors import UserError

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script x",
    "</script x",
    "<img src=x onerror=alert(1)>",
    "\"'&",
    "{{data}}",
]
VOID_TAGS = {"meta", "link", "img", "br", "hr", "input"}


class Document(HTMLParser):
    """Tags, attributes and text of a document; asserts that all tags are closed."""

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
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_tokens_and_titles_are_escaped() -> None:
    weights = np.full((2, 3, 6, 6), 0.2)
    plain = Document(render_html(weights, list("abcdef"), list("uvwxyz"), title="t"))
    hostile = Document(render_html(weights, HOSTILE, HOSTILE, title=HOSTILE[0]))
    assert hostile.tags == plain.tags
    assert hostile.texts["h1"] == [HOSTILE[0]]
    assert "<" not in hostile.texts["script"][0]
    data = json.loads(hostile.texts["script"][0])
    assert [token["text"] for token in data["source"]] == HOSTILE
    assert [token["text"] for token in data["target"]] == HOSTILE


def test_all_layers_and_heads_are_included() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 3, 5))
    source = [" ", "<end>", *"abcde"]
    data = json.loads(Document(render_html(weights, source, list("vwxyz"))).texts["script"][0])
    assert np.array(data["weights"]) == pytest.approx(weights, abs=1e-4)
    assert data["source"][:2] == [
        {"text": "␣", "dimmed": True},
        {"text": "<end>", "dimmed": True},
    ]
    assert (data["layer"], data["head"]) == (1, "mean")
    assert set(data["themes"]) == set(THEMES)


def test_no_external_resources() -> None:
    text = render_html([[[[1.0]]]], ["a"], ["b"])
    document = Document(text)
    assert not re.search(r"https?:|//\w|@import|url\(", text)
    assert not {"src", "href"} & {name for name, _ in document.attributes}
    assert "prefers-color-scheme: dark" in text


def test_weights_outside_0_and_1_are_noted() -> None:
    assert "scaled to the data" in render_html([[[[-3.0]]]], ["a"], ["b"])
    assert "scaled to the data" not in render_html([[[[0.5]]]], ["a"], ["b"])


def test_wrong_shape_error() -> None:
    with pytest.raises(UserError, match=r"\[layer head target source\], got \[1, 1\]"):
        render_html([[1.0]], ["a"], ["b"])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_valid_javascript(tmp_path: Path) -> None:
    script = Document(render_html([[[[1.0]]]], ["a"], ["b"])).texts["script"][-1]
    (tmp_path / "page.js").write_text(script, "utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, timeout=30)
