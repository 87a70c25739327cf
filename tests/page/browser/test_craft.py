"""Speed, colours, sizes, keyboard, screen readers, languages and scripts of the page."""

import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.page.browser.conftest import SENTENCE

STATES = {
    "plain": {"text": SENTENCE, "model": "first", "model2": "second"},
    "beam": {"text": "one two", "model": "first", "decoding": "beam", "view": "tree"},
    "changed": {
        "text": "one two",
        "model": "first",
        "decoding": "sample",
        "interventions": '[{"what":"mask","keys":[0]},{"what":"force","step":1,"token":"x"}]',
    },
}


# --- speed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["heatmap", "lines"])
def test_hovering_512_by_512_weights_of_32_heads_takes_less_than_50_ms(view, double):
    double.restore(text="512 tokens", model="first", head="all", view=view)
    # From the event until the frame is painted: a message posted in a frame arrives after it.
    script = """async () => {
        const canvas = document.querySelector('.above');
        const times = [];
        for (let step = 1; step < 20; step++) {
            times.push(await new Promise((resolve) => requestAnimationFrame(() => {
                const box = canvas.getBoundingClientRect();
                const [clientX, clientY] = [box.left + 5 * step, box.top + 30 + 9 * step];
                const start = performance.now();
                canvas.dispatchEvent(new PointerEvent('pointermove', {clientX, clientY, bubbles: true}));
                const channel = new MessageChannel();
                channel.port1.onmessage = () => resolve(performance.now() - start);
                channel.port2.postMessage(null);
            })));
        }
        times.sort((a, b) => a - b);
        return [times[10], document.querySelector('.readout').textContent]; }"""
    medians = []
    while (
        len(medians) < 5 and min(medians, default=50) >= 50
    ):  # other work on the machine only adds
        milliseconds, readout = double.page.evaluate(script)
        assert re.search(r"w\d+ (→|attends|is attended)", readout)
        medians.append(milliseconds)
    assert min(medians) < 50, medians


def test_the_page_answers_while_the_model_computes(double):
    double.restore(text="a b", model="first")
    double.page.locator("#input").fill("slow slow")
    double.page.locator('[aria-busy="true"]').wait_for()
    script = """() => new Promise((resolve) => { let frames = 0; const start = performance.now();
        const end = start + 200;
        const count = () => {
            if (performance.now() > end) return resolve(frames);
            frames++;
            requestAnimationFrame(count); };
        count(); })"""
    assert double.page.evaluate(script) > 5
    double.wait_for_output("wols wols")


# --- colours and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1024, 1440, 1920])
@pytest.mark.parametrize("name", STATES)
def test_nothing_is_wider_than_the_window(width, name, double):
    double.page.set_viewport_size({"width": width, "height": 900})
    double.restore(**STATES[name])
    assert double.page.evaluate("document.documentElement.scrollWidth") <= width
    double.page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_switch(scheme, double):
    other = {"light": "dark", "dark": "light"}[scheme]
    root = double.page.locator("html")
    double.page.emulate_media(color_scheme=scheme)
    double.wait_for(f'html[data-theme="{scheme}"]', 1)
    double.page.locator("#theme").select_option(other)
    assert root.get_attribute("data-theme") == other
    double.page.locator("#theme").select_option("auto")
    assert root.get_attribute("data-theme") == scheme
    double.page.emulate_media(color_scheme="light")


# --- keyboard and screen readers ------------------------------------------------------------------


def test_tokens_and_picture_work_with_the_keyboard(double):
    double.restore(text="one two three", model="first", head=1, layer=1)
    double.tokens("output").nth(0).focus()
    double.page.keyboard.press("ArrowRight")
    double.page.keyboard.press("Enter")
    assert double.page.locator(".big-token").inner_text() == "owt"
    double.page.locator(".figure").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
        double.page.keyboard.press(key)
    assert "owt → two: 0.850" in double.page.locator(".readout").inner_text()
    double.page.keyboard.press("Escape")
    assert double.page.locator(".readout").inner_text() == "Point at a token or a cell."


def test_the_output_is_announced(double):
    double.restore(text="ab cd", model="first")
    status = double.page.locator("#announce")
    assert status.inner_text() == "ba dc"
    assert status.get_attribute("aria-live") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STATES)
def test_everything_has_a_name_and_enough_contrast(name, scheme, double):
    double.page.emulate_media(color_scheme=scheme)
    double.restore(**STATES[name])
    double.tokens("output").nth(1).click()
    script = (Path(__file__).parent / "accessibility.js").read_text("utf-8")
    assert double.page.evaluate(script) == []
    double.page.emulate_media(color_scheme="light")


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="axe is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STATES)
def test_axe_finds_nothing(name, scheme, double):
    double.page.emulate_media(color_scheme=scheme)
    double.restore(**STATES[name])
    double.tokens("output").nth(1).click()
    double.page.evaluate(
        resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    )
    found = double.page.evaluate("axe.run().then(({violations}) => violations.map(({id}) => id))")
    assert found == []
    double.page.emulate_media(color_scheme="light")


# --- languages and scripts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "label"), [("de", "Zu übersetzender Satz"), ("fr", "Phrase à traduire")]
)
def test_the_interface_speaks(code, label, double):
    double.restore(text="one two", model="first")
    double.page.locator("#language").select_option(code)
    assert double.page.locator("html").get_attribute("lang") == code
    assert double.page.get_by_label(label).input_value() == "one two"
    double.page.locator("#language").select_option("en")


TABLES = {"ui/texts.js": 80, "served/served-texts.js": 30}  # with so many texts at least


@pytest.mark.parametrize("file", TABLES)
def test_every_language_has_every_text(file):
    """The keys of its tables, in order, and the places for values in each."""
    text = resources.files("regard.page").joinpath(file).read_text("utf-8")
    tables = re.split(r"^  \w\w: \{$", text, flags=re.MULTILINE)[1:]
    entries = [
        re.findall(r'^    (\w+): (?:"(.*)"|\{.*\}),$', table, re.MULTILINE) for table in tables
    ]
    values = [
        [(key, sorted(re.findall(r"\{\d\}", words))) for key, words in one] for one in entries
    ]
    assert len(values) == 3
    assert len(values[0]) > TABLES[file]
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("file", TABLES)
def test_every_text_is_used(file):
    path = resources.files("regard.page") / file
    names = re.findall(r'^    (\w+): "', path.read_text("utf-8"), re.MULTILINE)
    folder = resources.files("regard.page") / file.partition("/")[0]
    code = "".join(one.read_text("utf-8") for one in folder.iterdir() if one.name != path.name)
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_right_to_left_text_is_isolated(double):
    double.restore(text="שלום עולם", model="first")
    assert double.page.locator("#input").get_attribute("dir") == "rtl"
    assert double.page.locator(".tokens").first.get_attribute("dir") == "rtl"
    first, second = (double.tokens("source").nth(index).bounding_box() for index in (0, 1))
    assert first["x"] > second["x"]
    assert double.tokens("source").nth(0).locator("bdi").inner_text() == "שלום"
    double.tokens("source").nth(0).focus()
    double.page.keyboard.press("ArrowLeft")
    focused = double.page.evaluate("document.activeElement.textContent")
    assert focused == "עולם"


def test_chinese_text(double):
    double.restore(text="猫 在 睡觉", model="first")
    assert double.output() == "猫 在 觉睡"
    assert double.page.locator(".tokens").first.get_attribute("dir") == "ltr"


# --- labs -----------------------------------------------------------------------------------------


def test_without_labs_there_are_no_tabs(double):
    assert double.page.locator("[role=tab]").count() == 0
