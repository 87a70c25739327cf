"""The exported file, opened from disk in Chromium. One browser for all tests; pages may request nothing."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from regard.export import export
from regard.labs import LABS
from regard.page import labs
from regard.page.build import Pack, build

DOUBLE = Path(__file__).parents[1] / "double.js"
SENTENCE = "Ein Mann schläft auf einer grünen Bank."


def describe(name: str, **changes: Any) -> dict[str, Any]:
    """The manifest of a model of the test double."""
    heads = {name: [2, 4] for name in ("cross", "encoder", "decoder")}
    info = {"name": name, "kind": "transformer", "heads": heads, "parameters": 1234567}
    info |= {"tokenizer": "word", "examples": ["one two three", "four five"], "facts": {}}
    return {"info": info | changes}


@dataclass
class View:
    """A page in the browser, with what went wrong in it."""

    page: Any
    file: Path
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def restore(self, **fields: Any) -> "View":
        """Go to the address with this fragment, and wait for the answer."""
        self.page.goto(f"{self.file.as_uri()}#{urlencode(fields)}")
        self.page.locator(".token").first.wait_for()
        return self.settle()

    def settle(self) -> "View":
        """Wait until nothing is computed any more: after the pause that follows the last key."""
        self.page.wait_for_timeout(60)
        self.wait_for('[aria-busy="true"]', 0)
        return self

    def wait_for(self, selector: str, count: int) -> None:
        """Wait until so many elements are there. (The page's policy forbids waiting for a script.)"""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(count, timeout=15_000)

    def wait_for_output(self, text: str) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(".result").first).to_have_text(text, timeout=15_000)

    def output(self, panel: int = 0) -> str:
        return self.page.locator(".result").nth(panel).inner_text()

    def tokens(self, row: str, panel: int = 0) -> Any:
        """The buttons of a row of tokens: source or output."""
        rows = self.page.locator(".panel").nth(panel).locator(".tokens")
        return rows.nth(0 if row == "source" else 1).locator("button")

    def control(self, name: str, panel: int = 0) -> Any:
        return self.page.locator(".panel").nth(panel).locator(f'[data-control="{name}"]')

    def colours(self, canvas: str) -> int:
        """How many colours a canvas of the first panel has, transparent included."""
        script = """name => { const canvas = document.querySelector(name);
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const context = copy.getContext('2d', {willReadFrequently: true});
            context.drawImage(canvas, 0, 0);
            const {data} = context.getImageData(0, 0, copy.width, copy.height);
            return new Set(new Uint32Array(data.buffer)).size; }"""
        return self.page.evaluate(script, canvas)

    def score(self, panel: int = 0) -> float:
        """The log-probability on the screen."""
        text = self.page.locator(".scores").nth(panel).inner_text()
        return -float(text.split("−")[1].split()[0])

    def point(self, query: int, key: int, action: str = "move") -> None:
        """Move to a cell of the heat map of the first panel, and maybe click it."""
        grid = self.page.locator(".stack").first.get_attribute("data-grid")
        left, top, cell = map(float, grid.split())
        box = self.page.locator(".above").first
        position = {"x": left + (key + 0.5) * cell, "y": top + (query + 0.5) * cell}
        box.hover(position=position)
        if action == "click":
            box.click(position=position)
            self.settle()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def double_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two models of the test double, which answers at once."""
    out = tmp_path_factory.mktemp("double") / "page.html"
    packs = [Pack(describe("first"), b"\x00"), Pack(describe("second"), b"\x00")]
    build(packs, out, engine=DOUBLE.read_text("utf-8"))
    return out


@pytest.fixture(scope="session")
def small_labs() -> dict[str, Any]:
    """Two labs over a few settings: one parameter at a time, and all combinations with heat maps."""
    values = {"copying": ["beta=0", "beta=6", "keys=5", "width=16", "scaled=true"], "qkv": []}
    values["qkv"] = ["temperature=400", "query=1", "query=1 temperature=400"]
    points = {
        name: [
            LABS[name].validate_parameters(dict(word.split("=") for word in setting.split()))
            for setting in ["", *settings]
        ]
        for name, settings in values.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            labs, "choose_points", lambda lab: [point.model_dump() for point in points[lab.name]]
        )
        return labs.measure_labs([LABS[name] for name in values])


@pytest.fixture(scope="session")
def labs_file(tmp_path_factory: pytest.TempPathFactory, small_labs: dict[str, Any]) -> Path:
    """A page of labs, without a model."""
    out = tmp_path_factory.mktemp("labs") / "labs.html"
    build([], out, labs=small_labs)
    return out


@pytest.fixture(scope="session")
def real_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with both shipped models, as users export it."""
    out = tmp_path_factory.mktemp("real") / "page.html"
    export([Path("de-en"), Path("de-en-gru")], "page", out)
    return out


@pytest.fixture(scope="module")
def open_view(browser: Any) -> Iterator[Callable[..., View]]:
    """open_view(file, ready, **context): a page of its own, in which `ready` appears.

    In the end no error and no request is allowed.
    """
    views: list[View] = []

    def open_file(file: Path, ready: str = ".token", **context: Any) -> View:
        options = {"viewport": {"width": 1440, "height": 900}, "locale": "en-GB"} | context
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(15_000)
        view = View(page, file)
        page.on("pageerror", lambda error: view.errors.append(str(error)))
        page.on(
            "console",
            lambda line: view.errors.append(line.text) if line.type != "log" else None,
        )
        page.on("request", lambda request: view.requests.append(request.url))
        page.goto(file.as_uri())
        page.locator(ready).first.wait_for()
        views.append(view)
        return view

    yield open_file
    for view in views:
        assert view.errors == []
        outside = [url for url in view.requests if not url.startswith(("file:", "blob:", "data:"))]
        assert outside == []
        assert {url.partition("#")[0] for url in view.requests if url.startswith("file:")} == {
            view.file.as_uri()
        }
        view.page.context.close()


@pytest.fixture(scope="module")
def double(open_view: Callable[..., View], double_file: Path) -> View:
    return open_view(double_file)


@pytest.fixture(scope="module")
def real(open_view: Callable[..., View], real_file: Path) -> View:
    return open_view(real_file)
