"""The page of `regard serve` in Chromium, with a server in a thread of the test."""

import re
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from regard.serve.settings import Limits, Settings
from tests.page.browser.conftest import View
from tests.serve.conftest import COMPARISON, serve

TOKEN = "correct-horse-battery"  # the same in an address
FAILED = "Failed to load resource"  # the browser's own line about a 4xx or 5xx
WAIT = 15_000


class ServedView(View):
    """A page at an address."""

    url: str

    def open(self, **fields: Any) -> "ServedView":
        self.page.goto(f"{self.url}#{urlencode(fields)}")
        return self

    def restore(self, **fields: Any) -> "ServedView":
        self.open(**fields).page.locator(".token").first.wait_for()
        self.settle()
        return self

    def expect(self, selector: str, text: str | re.Pattern[str]) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(selector).first).to_contain_text(text, timeout=WAIT)


@pytest.fixture(scope="module")
def open_served(browser: Any) -> Iterator[Callable[..., ServedView]]:
    """open_served(port, **context): a new page. In the end no error, and no request elsewhere, is allowed."""
    views: list[ServedView] = []

    def open_page(port: int, **context: Any) -> ServedView:
        options = {"viewport": {"width": 1440, "height": 900}, "locale": "en-GB"} | context
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(WAIT)
        view = ServedView(page, Path())
        view.url = f"http://127.0.0.1:{port}/"
        page.on("pageerror", lambda error: view.errors.append(str(error)))
        page.on(
            "console",
            lambda line: (
                view.errors.append(line.text)
                if line.type != "log" and not line.text.startswith(FAILED)
                else None
            ),
        )
        page.on("request", lambda request: view.requests.append(request.url))
        views.append(view)
        page.goto(view.url)
        return view

    yield open_page
    for view in views:
        assert view.errors == []
        outside = [url for url in view.requests if not url.startswith((view.url, "blob:", "data:"))]
        assert outside == []
        assert not any(TOKEN in url for url in view.requests)
        view.page.context.close()


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    limits = Limits(characters=300, beam=8, seconds=20)
    with serve(Settings((Path("de-en"),), (COMPARISON,), limits=limits)) as client:
        yield client.port


@pytest.fixture(scope="module")
def view(open_served, port) -> ServedView:
    return open_served(port)


def accessibility_problems(view: ServedView) -> list[str]:
    script = (Path(__file__).parents[1] / "accessibility.js").read_text("utf-8")
    problems = view.page.evaluate(script)
    if find_spec("axe_playwright_python") is not None:
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
        view.page.evaluate(axe)
        run = "axe.run().then(({violations}) => violations.map(({id}) => id))"
        problems += view.page.evaluate(run)
    return problems


def points(view: ServedView) -> list[int]:
    """How many points each line of the first chart has."""
    lines = view.page.locator(".chart").first.locator("polyline")
    return [len(one.get_attribute("points").split()) for one in lines.all()]
