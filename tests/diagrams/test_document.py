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
    cross = data["mechanisms"]["cross"]
    assert [token["text"] for token in cross["keys"]] == HOSTILE
    assert [token["text"] for token in cross["queries"]] == HOSTILE


def test_all_layers_and_heads_are_included() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 3, 5))
    source = [" ", "<end>", *"abcde"]
    data = json.loads(Document(render_html(weights, source, list("vwxyz"))).texts["script"][0])
    cross = data["mechanisms"]["cross"]
    assert np.array(cross["weights"]) == pytest.approx(weights, abs=1e-4)
    assert cross["keys"][:2] == [
        {"text": "␣", "dimmed": True},
        {"text": "<end>", "dimmed": True},
    ]
    assert (data["layer"], data["head"]) == (2, "mean")  # the last layer
    assert set(data["themes"]) == set(THEMES)


def test_no_external_resources() -> None:
    text = render_html([[[[1.0]]]], ["a"], ["b"])
    document = Document(text)
    assert not re.search(r"https?:|//\w|@import|url\(", text)
    assert not {"src", "href"} & {name for name, _ in document.attributes}
    assert "prefers-color-scheme: dark" in text


ATTENTION = {
    "cross": np.full((2, 3, 5, 7), 1 / 7),
    "encoder": np.full((4, 3, 7, 7), 1 / 7),
    "decoder": np.full((2, 3, 5, 5), 0.2),
}


def test_every_mechanism_has_its_tokens() -> None:
    text = render_html(ATTENTION, list("abcdefg"), list("vwxyz"), mechanism="encoder")
    data = json.loads(Document(text).texts["script"][0])
    tokens = {
        name: ["".join(t["text"] for t in one[side]) for side in ("keys", "queries")]
        for name, one in data["mechanisms"].items()
    }
    assert tokens == {
        "cross": ["abcdefg", "vwxyz"],
        "encoder": ["abcdefg", "abcdefg"],
        "decoder": ["<begin>vwxy", "vwxyz"],
    }
    names = [(one["keyName"], one["queryName"]) for one in data["mechanisms"].values()]
    assert names == [
        ("source (keys)", "target (queries)"),
        ("source (keys)", "source (queries)"),
        ("target so far (keys)", "target (queries)"),
    ]
    assert (data["mechanism"], data["layer"]) == ("encoder", 4)


def test_missing_mechanism_error() -> None:
    with pytest.raises(UserError, match='no "encoder" attention: it has cross'):
        render_html([[[[1.0]]]], ["a"], ["b"], mechanism="encoder")
    with pytest.raises(UserError, match="it has no attention at all"):
        render_html({}, ["a"], ["b"])


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
@pytest.mark.parametrize(
    ("weights", "scale"),
    [
        ([[0.9, 0.1]], "attention weight"),
        ([[0.12, 0.08]], "attention weight (scale ends at 0.20)"),
        ([[-3.0, 1.0]], "attention weight (scale to 3.00)"),
    ],
)
def test_the_page_opens_on_the_last_layer(tmp_path: Path, weights: list, scale: str) -> None:
    """In a real browser: the scale, the axis names and the isolated tokens of what is shown."""
    attention = np.array([[[[0.5, 0.5]]], [weights]])
    page = tmp_path / "page.html"
    page.write_text(render_html(attention, ["שלום", "b"], ["c"]), "utf-8")
    command = [BROWSER, "--no-sandbox", "--headless", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.decode()
    assert f'<span id="scale">{scale}</span>' in shown
    assert shown.count("source (keys)") == 2 + 1  # chips and matrix, and the data
    assert "“\u2068c\u2069” attends to" in shown
    assert "<bdi>שלום</bdi>" in shown


def test_right_to_left_titles_are_isolated() -> None:
    assert '<h1 dir="auto">שלום</h1>' in render_html([[[[1.0]]]], ["a"], ["b"], title="שלום")


def test_wrong_shape_error() -> None:
    with pytest.raises(UserError, match=r"\[layer head target source\], got \[1, 1\]"):
        render_html([[1.0]], ["a"], ["b"])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_valid_javascript(tmp_path: Path) -> None:
    script = Document(render_html([[[[1.0]]]], ["a"], ["b"])).texts["script"][-1]
    (tmp_path / "page.js").write_text(script, "utf-8")
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, timeout=30)
