"""The page of `regard serve` in Chromium: the same view as an exported page, with a server behind it."""

import io
import re
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from rich.console import Console

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import regard
from regard.config import Config
from regard.labs import LABS
from regard.serve import catalogue
from regard.serve.settings import Limits, Settings
from regard.training import train
from tests.page.browser.conftest import SENTENCE, View
from tests.serve.conftest import COMPARISON, serve
from tests.training.conftest import DATA, MODELS, TRAINING

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


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    limits = Limits(characters=300, beam=8, seconds=20)
    with serve(Settings((Path("de-en"),), (COMPARISON,), limits=limits)) as client:
        yield client.port


@pytest.fixture(scope="module")
def view(open_served, port) -> ServedView:
    return open_served(port)


def accessibility_problems(view: ServedView) -> list[str]:
    script = (Path(__file__).parent / "accessibility.js").read_text("utf-8")
    problems = view.page.evaluate(script)
    if find_spec("axe_playwright_python") is not None:
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
        view.page.evaluate(axe)
        run = "axe.run().then(({violations}) => violations.map(({id}) => id))"
        problems += view.page.evaluate(run)
    return problems


# --- translating ----------------------------------------------------------------------------------


def test_output_and_attention_are_those_of_python(view):
    view.restore(text=SENTENCE, model="de-en", layer=2, head=3)
    expected = regard.load("de-en").translate([SENTENCE])[0]
    assert view.output() == expected.text
    labels = [token.split("\n")[0] for token in view.tokens("output").all_inner_texts()]
    assert labels == list(expected.target)
    assert view.score() == pytest.approx(expected.score, abs=0.006)
    weights = expected.attention["cross"][1][2]
    for query, key in ((0, 0), (2, 2), (4, 8)):
        view.point(query, key)
        shown = view.page.locator(".readout").first.inner_text()
        assert float(shown.rsplit(": ")[1]) == pytest.approx(float(weights[query][key]), abs=6e-4)
    view.tokens("output").nth(2).click()
    assert view.page.locator(".alternative").count() == 8


def test_a_beam_has_its_tree(view):
    view.restore(text=SENTENCE, model="de-en", decoding="beam", beam=4, view="tree")
    assert view.output() == regard.load("de-en").translate([SENTENCE], beam=4)[0].text
    assert view.page.locator(".hypotheses li").count() >= 4


def test_an_intervention_shows_what_changes(view):
    view.restore(text=SENTENCE, model="de-en")
    before = view.output()
    view.tokens("output").nth(0).click()
    token = view.page.locator(".alternative:not(.chosen) bdi").first.inner_text()
    view.page.locator(".alternative:not(.chosen)").first.click()
    change = {"what": "force", "step": 0, "token": token}
    expected = regard.load("de-en").translate([SENTENCE], interventions=[change])[0].text
    view.wait_for_output(expected)
    assert expected != before
    view.expect(".before", before)


def test_a_translation_by_hand(view):
    target = "A man sleeps on a green bench."
    view.restore(text=SENTENCE, model="de-en", target=target)
    expected = regard.load("de-en").explain([(SENTENCE, target)])[0]
    assert view.output() == target
    assert view.score() == pytest.approx(expected.score, abs=0.006)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"text": "ja " * 150}, "text 1 has 450 characters, and this server allows at most 300"),
        ({"text": SENTENCE, "decoding": "beam", "beam": 9}, "beam is 9, and this server allows"),
    ],
)
def test_an_error_of_the_server_is_shown_as_one_of_the_engine(view, fields, sentence):
    view.restore(text=SENTENCE, model="de-en")
    view.open(model="de-en", **fields)
    view.expect(".problem", f"This did not work: {sentence}")
    view.restore(text="Guten Morgen!", model="de-en")
    assert not view.page.locator(".panel .problem").is_visible()


@pytest.mark.parametrize(
    ("status", "headers", "body", "sentence"),
    [
        (
            *(503, {"Retry-After": "7"}, '{"error": "64 texts are waiting", "code": "queue-full"}'),
            "64 texts are waiting. Try again in 7 seconds.",
        ),
        (408, {}, '{"error": "there was no answer", "code": "too-slow"}', "there was no answer"),
        (502, {}, "<html>Bad gateway", "HTTP 502"),
        (None, {}, "", "the server cannot be reached"),
    ],
)
def test_a_server_that_does_not_answer(view, status, headers, body, sentence):
    """As a proxy or a busy server would answer."""
    view.restore(text=SENTENCE, model="de-en")

    def answer(route):
        if status is None:
            route.abort()
        else:
            route.fulfill(status=status, headers=headers, body=body)

    view.page.route("**/api/page", answer)
    view.open(text="Guten Morgen!", model="de-en")
    view.expect(".problem", f"This did not work: {sentence}")
    view.page.unroute("**/api/page")


def test_an_outdated_request_is_dropped(view):
    view.restore(text=SENTENCE, model="de-en")
    held = []
    view.page.route("**/api/page", lambda route: held.append(route))
    view.page.locator("#input").fill("Ja.")
    view.page.locator('[aria-busy="true"]').wait_for()
    view.page.unroute("**/api/page")
    view.page.locator("#input").fill("Guten Morgen!")
    view.wait_for_output(regard.load("de-en").translate(["Guten Morgen!"])[0].text)
    assert len(held) == 1
    assert held[0].request.failure == "net::ERR_ABORTED"


# --- the token ------------------------------------------------------------------------------------


def test_the_page_asks_for_the_token(open_served):
    with serve(Settings((Path("de-en-gru"),), token=TOKEN)) as client:
        view = open_served(client.port)
        field = view.page.get_by_label("Token of this server")
        field.wait_for()
        assert not view.page.locator(".token-form .problem").is_visible()
        assert accessibility_problems(view) == []
        for wrong in ("not the token", "ключ"):
            field.fill(wrong)
            field.press("Enter")
            view.expect(
                ".token-form .problem:not([hidden])", "The server does not accept this token."
            )
            assert view.page.locator(".token-form").count() == 1
        field.fill(TOKEN)
        field.press("Enter")
        view.page.locator(".token").first.wait_for()
        assert view.page.locator(".token-form").count() == 0
        view.page.reload()  # kept for the tab
        view.page.locator(".token").first.wait_for()
        assert view.page.locator(".token-form").count() == 0
        assert TOKEN not in view.page.url
        storage = "JSON.stringify([{...localStorage}, document.cookie])"
        assert TOKEN not in view.page.evaluate(storage)


# --- training -------------------------------------------------------------------------------------


class GatedTraining:
    """A tiny training in a thread, which goes on by one event with each `go`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.error = folder, None
        self.gate, self.logged = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.wait()

    def run(self) -> None:
        config = Config.model_validate(
            {
                "data": {"kind": "synthetic", **DATA},
                "model": MODELS["recurrent"],
                "training": TRAINING | {"validate_every": 4},
            }
        )
        console = Console(file=io.StringIO())
        try:
            train(config, self.folder, "cpu", False, console, callbacks=(self.on_event,))
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.logged.release()

    def on_event(self, event: dict[str, Any]) -> None:
        self.logged.release()
        assert self.gate.acquire(timeout=60)

    def wait(self) -> None:
        assert self.logged.acquire(timeout=60)
        assert self.error is None

    def go(self) -> None:
        self.gate.release()
        self.wait()

    def finish(self) -> None:
        self.gate.release(1000)
        self.thread.join()


def points(view: ServedView) -> list[int]:
    """How many points each line of the first chart has."""
    lines = view.page.locator(".chart").first.locator("polyline")
    return [len(one.get_attribute("points").split()) for one in lines.all()]


def test_a_run_that_trains_while_the_page_is_open(open_served, tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "POLL", 0.05)
    training = GatedTraining(tmp_path / "mine")
    try:
        with serve(Settings((tmp_path / "mine",))) as client:
            view = open_served(client.port)
            view.expect("#translate", "No run has weights yet")
            view.page.get_by_role("tab", name="Training").click()
            view.expect(".runState", "In training · no validation yet")
            training.go()
            view.expect(".runState", "step 4, epoch")
            assert points(view) == [1, 1]
            training.go()
            view.expect(".runState", "step 8, epoch")
            assert points(view) == [2, 2]
            rows = view.page.locator(".log tbody tr")
            assert rows.count() == 2
            view.page.locator(".sample-list dd").first.wait_for()
            assert accessibility_problems(view) == []
            training.finish()
            view.expect(".runState", "Training is finished")
            events = regard.runs.RunFolder(training.folder).events
            last = [event for event in events if event["event"] == "validation"][-1]
            view.page.locator(".chart-frame").first.press("End")
            view.expect(".chart .readout", f"Step {last['step']}: ")
            view.expect(".chart .readout", f"validation loss {last['loss']:.3f}")
            view.page.get_by_role("tab", name="Translate").click()
            view.page.locator(".token").first.wait_for()  # it came without a reload
            urls = [url.partition("#")[0] for url in view.requests]
            assert urls.count(view.url) == 1
    finally:
        training.finish()


# --- comparisons ----------------------------------------------------------------------------------


def test_a_comparison_has_its_table(view):
    view.open(comparison="families").expect(".comparison h2", "families")
    view.expect(".comparison td", "multi30k-transformer")
    table = [row.split("\t") for row in view.page.locator(".comparison tr").all_inner_texts()]
    lines = (COMPARISON / "table.md").read_text("utf-8").splitlines()
    expected = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert table == [expected[0], *expected[2:]]
    view.expect(".notes code", "nrefs:1")


def test_a_comparison_grows(open_served, tmp_path):
    def log(run: str, steps: range) -> None:
        folder = tmp_path / "sweep" / "runs" / run
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as file:
            for step in steps:
                file.write(f'{{"event": "validation", "step": {step}, "loss": {9 - step / 10}}}\n')

    log("case-rnn-1a2b3c4d/seed-0", range(5, 15, 5))
    with serve(Settings((), (tmp_path / "sweep",))) as client:
        view = open_served(client.port)  # without a run, it opens with the comparison
        view.expect(".comparison .state", "Some runs are not finished yet")
        view.wait_for(".comparison polyline", 1)
        log("case-rnn-1a2b3c4d/seed-0", range(15, 25, 5))
        log("case-gru-99ffee01/seed-0", range(5, 25, 5))
        view.wait_for(".comparison polyline", 2)
        assert points(view) == [4, 4]
        line = view.page.locator("polyline").first.get_attribute("points").split()
        heights = [float(place.split(",")[1]) for place in line]
        assert heights == sorted(heights)  # the loss falls
        strokes = [line.get_attribute("stroke") for line in view.page.locator("polyline").all()]
        assert len(set(strokes)) == 2
        assert not view.page.get_by_role("tab", name="Translate").is_visible()
        with view.page.expect_download() as download:
            view.page.get_by_role("button", name="Save SVG").click()
        saved = Path(download.value.path()).read_text("utf-8")
        assert "case-rnn-1a2b3c4d" in "".join(ElementTree.fromstring(saved).itertext())
        with view.page.expect_download() as download:
            view.page.get_by_role("button", name="Save PNG").click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


# --- labs -----------------------------------------------------------------------------------------


def figures(view: ServedView) -> list[float]:
    return [float(text.split()[0]) for text in view.page.locator(".figures").all_inner_texts()]


def test_a_lab_takes_any_parameter(view):
    view.open(lab="copying").expect(".sliders", "Measured on the server")
    view.page.get_by_label("beta", exact=True).first.fill("3.217")
    view.page.keyboard.press("Enter")
    view.page.get_by_label("seed", exact=True).fill("5")
    view.page.keyboard.press("Enter")
    view.expect(".lab code", "regard lab copying --seed 5 --set beta=3.217")
    expected = LABS["copying"].run(5, beta=3.217)
    assert figures(view) == pytest.approx([c.measured for c in expected.checks], rel=1e-5, abs=1e-9)
    assert view.page.url.endswith("#lab=copying&beta=3.217&seed=5")
    before = view.page.locator(".plot-image").get_attribute("src")
    slider = view.page.get_by_role("slider", name="keys", exact=True)
    slider.focus()
    slider.press("Home")
    view.expect(".lab code", "--set beta=3.217 --set keys=2")
    assert view.page.locator(".plot-image").get_attribute("src") != before
    view.page.get_by_role("button", name="Effect absent").click()
    view.expect(".verdict", "The effect is absent")


def test_a_slider_stops_at_each_of_few_values(view):
    view.open(lab="qkv", query=1).expect(".lab code", "--set query=1")
    slider = view.page.get_by_role("slider", name="query", exact=True)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    view.expect(".lab code", "--set query=3")


def test_a_server_that_cannot_list_its_labs(open_served, port):
    view = open_served(port)
    view.page.locator(".token").first.wait_for()
    error = '{"error": "this server stops", "code": "stopping"}'
    view.page.route("**/api/labs", lambda route: route.fulfill(status=503, body=error))
    view.page.get_by_role("tab", name="Labs").click()
    view.expect(".lab-list .problem", "This did not work: this server stops")
    view.page.unroute("**/api/labs")
    view.page.get_by_role("tab", name="Translate").click()
    view.page.get_by_role("tab", name="Labs").click()
    view.expect(".lab h2", LABS["copying"].claim)


def test_a_lab_refuses_a_parameter(view):
    view.open(lab="copying", keys=9999)
    view.expect(".lab .problem", "This did not work: lab copying: keys: got 9999")
    assert not view.page.locator(".plot").is_visible()
    view.page.get_by_role("button", name="Defaults").click()
    view.expect(".lab code", "regard lab copying --seed 0")
    assert view.page.locator(".plot").is_visible()


def test_a_lab_that_trains_waits_for_the_button(view):
    requests = len(view.requests)
    view.open(lab="bottleneck").expect(".lab-message", "This lab trains or times models")
    assert not any("/labs/bottleneck" in url for url in view.requests[requests:])
    view.page.get_by_role("button", name="Short run").click()
    assert view.page.get_by_label("train_size", exact=True).first.input_value() == "4000"
    assert view.page.get_by_role("button", name="Run", exact=True).is_enabled()


# --- craft ----------------------------------------------------------------------------------------

PLACES = {
    "translate": ({"text": SENTENCE, "model": "de-en"}, ".token"),
    "comparison": ({"comparison": "families"}, ".comparison td"),
    "lab": ({"lab": "copying", "scaled": "true"}, ".check-list"),
    "refused": ({"lab": "copying", "keys": 9999}, ".lab .problem"),
    "slow": ({"lab": "bottleneck"}, ".lab-message"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PLACES)
def test_everything_is_accessible_and_fits(view, name, scheme):
    fields, ready = PLACES[name]
    view.page.emulate_media(color_scheme=scheme)
    view.open(**fields).page.locator(ready).first.wait_for()
    view.settle()
    assert accessibility_problems(view) == []
    for width in (390, 1024):
        view.page.set_viewport_size({"width": width, "height": 900})
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    view.page.set_viewport_size({"width": 1440, "height": 900})
    view.page.emulate_media(color_scheme="light")


def test_tabs_work_with_the_keyboard(view):
    view.open(lab="copying").page.get_by_role("tab", name="Labs").focus()
    for name in ("Translate", "Comparisons", "Labs"):
        view.page.keyboard.press("ArrowRight")
        tab = view.page.get_by_role("tab", name=name)
        assert tab.get_attribute("aria-selected") == "true"
    view.page.keyboard.press("ArrowLeft")
    view.expect("[role=tab][aria-selected=true]", "Comparisons")


@pytest.mark.parametrize(("code", "words"), [("de", "Vergleiche"), ("fr", "Comparaisons")])
def test_the_interface_speaks(view, code, words):
    view.open(comparison="families")
    view.page.locator("#language").select_option(code)
    view.expect("[role=tab][aria-selected=true]", words)
    view.page.locator("#language").select_option("en")
