"""Labs that the server measures when they are asked for; and the craft of all tabs."""

import pytest

from regard.labs import LABS
from tests.page.browser.conftest import SENTENCE
from tests.page.browser.served.conftest import ServedView, accessibility_problems


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
