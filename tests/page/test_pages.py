"""Invariants of every HTML page: a strict policy, and no text that becomes markup or code."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.hostile import HOSTILE
from tests.page.pages import PAGES

SOURCE = Path(__file__).parents[2] / "src" / "regard"
TEXT = " ".join(
    [
        *(text for text in HOSTILE.values() if text.isprintable()),
        "</script><script>alert(1)</script>",
        "</style></title><!-- <script x",
        '" onload="alert(1)" x="',
        "{{data}}{{policy}}{{script}}",
    ]
)


class Elements(HTMLParser):
    """The elements of a page: tag, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)

    @property
    def policy(self) -> dict[str, str]:
        metas = [attrs for tag, attrs, _ in self.found if tag == "meta" and "http-equiv" in attrs]
        [text] = [attrs["content"] for attrs in metas]
        return dict(rule.strip().split(" ", 1) for rule in (text or "").split(";"))


@pytest.fixture(scope="module", params=PAGES)
def write(request):
    return PAGES[request.param]


def test_every_page_allows_its_own_code_alone(write, tmp_path: Path) -> None:
    elements = Elements(write("text", tmp_path).read_text("utf-8"))
    policy = elements.policy
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert not re.search("unsafe|http|[*]", str(policy))
    for kind in ("script", "style"):
        code = [
            "".join(texts)
            for tag, attrs, texts in elements.found
            if tag == kind and "type" not in attrs
        ]
        digests = (hashlib.sha256(text.encode()).digest() for text in code)
        hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert policy.get(f"{kind}-src", "") == " ".join(hashes)
    tags = [tag for tag, _, _ in elements.found]
    first_code = min(tags.index(tag) for tag in ("script", "style") if tag in tags)
    assert first_code > [attrs.get("http-equiv") for _, attrs, _ in elements.found].index(
        "Content-Security-Policy"
    )


def test_no_text_becomes_an_element(write, tmp_path: Path) -> None:
    plain = Elements(write("text", tmp_path).read_text("utf-8"))
    hostile = Elements(write(TEXT, tmp_path).read_text("utf-8"))
    tags = [(tag, sorted(attrs)) for tag, attrs, _ in hostile.found]
    assert tags == [(tag, sorted(attrs)) for tag, attrs, _ in plain.found]
    assert hostile.policy == plain.policy
    for _, attrs, _ in hostile.found:
        assert not {name for name in attrs if name == "style" or name.startswith("on")}
        links = [attrs.get(name) or "" for name in ("href", "src", "srcset", "action")]
        assert not any(re.match(r"\s*\w+:", link) for link in links)


def test_pages_come_from_templates_with_a_policy() -> None:
    templates = sorted(SOURCE.rglob("*.html"))
    assert len(templates) == 4
    for template in templates:
        head = template.read_text("utf-8").partition("<style>")[0]
        assert '<meta http-equiv="Content-Security-Policy" content="{{policy}}">' in head, template
    for module in SOURCE.rglob("*.py"):
        assert "<!doctype" not in module.read_text("utf-8").lower(), module
