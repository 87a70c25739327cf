"""Labs on the page: sliders, plots, checks, keyboard, colours, languages, the address."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from regard.diagrams.themes import THEMES
from regard.labs import LABS
from regard.page.build import Pack, build
from tests.page.browser.conftest import DOUBLE, describe

PIXEL = """async () => {
    const image = document.querySelector('.plot-image');
    await image.decode();
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const {data} = context.getImageData(5, 5, canvas.width - 5, canvas.height - 5);
    const colours = new Set(new Uint32Array(data.buffer)).size;
    return ['#' + [...data.slice(0, 3)].map((x) => x.toString(16).padStart(2, '0')).join(''), colours]; }"""


@pytest.fixture(scope="module")
def labs(open_view, labs_file):
    return open_view(labs_file, ".check-list")


def show(view, fragment: str = "lab=copying") -> None:
    view.page.goto(f"{view.file.as_uri()}#{fragment}")
    ready(view)


def ready(view) -> None:
    view.wait_for('.lab[aria-busy="false"]', 1)


def slider(view, name: str):
    return view.page.get_by_role("slider", name=name, exact=True)


def verdict(view) -> list[str]:
    return view.page.locator(".badge").all_text_contents()


# --- what is shown --------------------------------------------------------------------------------


def test_a_lab_has_its_claim_derivation_law_and_effect(labs):
    show(labs)
    lab, result = LABS["copying"], LABS["copying"].run()
    text = labs.page.locator(".lab").inner_text()
    assert lab.claim in text
    assert "alpha_j = e^beta / (e^beta + m - 1)" in text
    for check in result.checks:
        assert check.name in text
    assert labs.page.locator(".check-list .pass").count() == len(result.checks)
    assert labs.page.locator("tbody tr").count() == len(result.table.rows)
    assert "6 settings, one parameter at a time, measured in Python" in text
    assert not labs.page.locator("#tabs").is_visible()
    assert labs.page.locator("#translate").inner_text() == ""


def test_a_slider_shows_another_measurement(labs):
    show(labs)
    before = labs.page.locator(".plot-image").get_attribute("src")
    slider(labs, "beta").focus()
    labs.page.keyboard.press("ArrowLeft")
    ready(labs)
    assert slider(labs, "beta").get_attribute("aria-valuetext") == "6"
    expected = LABS["copying"].run(0, beta=6)
    shown = labs.page.locator(".figures").all_inner_texts()
    assert [float(text.split()[0]) for text in shown] == pytest.approx(
        [check.measured for check in expected.checks], rel=1e-5, abs=1e-12
    )
    assert labs.page.locator(".plot-image").get_attribute("src") != before
    assert labs.page.locator("code").inner_text() == "regard lab copying --seed 0 --set beta=6.0"
    labs.page.keyboard.press("ArrowLeft")
    ready(labs)
    assert verdict(labs) == ["✓passed: The law holds", "✗failed: The effect is absent"]
    assert labs.page.locator(".fail .figures").count() > 0


def test_a_slider_can_be_dragged(labs):
    show(labs)
    box = slider(labs, "beta").bounding_box()
    middle = box["y"] + box["height"] / 2
    labs.page.mouse.move(box["x"] + box["width"] - 5, middle)
    labs.page.mouse.down()
    for share in (0.8, 0.5, 0.2, 0.02):
        labs.page.mouse.move(box["x"] + share * box["width"], middle)
        labs.page.wait_for_timeout(30)
    labs.page.mouse.up()
    ready(labs)
    assert slider(labs, "beta").get_attribute("aria-valuetext") == "0"


def test_a_parameter_that_was_not_measured_with_it_returns_and_the_page_says_so(labs):
    show(labs, "lab=copying&beta=6")
    slider(labs, "keys").press("ArrowLeft")
    ready(labs)
    assert slider(labs, "keys").get_attribute("aria-valuetext") == "5"
    assert slider(labs, "beta").get_attribute("aria-valuetext") == "12"
    note = labs.page.locator(".sliders [role=status]").inner_text()
    assert note == "Back to another value: beta. Parameters were measured one at a time."


def test_all_combinations_stay(labs):
    show(labs, "lab=qkv&query=1")
    slider(labs, "temperature").press("ArrowRight")
    ready(labs)
    assert slider(labs, "query").get_attribute("aria-valuetext") == "1"
    assert "all combinations" in labs.page.locator(".sliders [role=status]").inner_text()


def test_buttons(labs):
    show(labs)
    labs.page.get_by_role("button", name="Effect absent").click()
    ready(labs)
    assert verdict(labs)[1] == "✗failed: The effect is absent"
    labs.page.get_by_role("button", name="Defaults").click()
    ready(labs)
    assert verdict(labs)[1] == "✓passed: The effect is present"
    labs.page.locator(".marks").first.get_by_text("6", exact=True).click()
    assert slider(labs, "beta").get_attribute("aria-valuetext") == "6"


# --- the address ----------------------------------------------------------------------------------


def test_the_address_restores_lab_and_setting(labs):
    show(labs)
    labs.page.get_by_role("button", name="qkv").click()
    slider(labs, "query").press("ArrowLeft")
    ready(labs)
    assert labs.page.url.endswith("#lab=qkv&query=1")
    show(labs)
    show(labs, "lab=qkv&query=1")
    assert slider(labs, "query").get_attribute("aria-valuetext") == "1"


@pytest.mark.parametrize(
    "fragment",
    ["lab=copying&beta=7", "lab=copying&beta=6&keys=5", "lab=copying&<b>=1&beta=%00", "text=x"],
)
def test_what_was_not_measured_is_the_default(labs, fragment):
    show(labs)
    show(labs, fragment)
    assert slider(labs, "beta").get_attribute("aria-valuetext") == "12"
    assert slider(labs, "keys").get_attribute("aria-valuetext") == "10"


# --- plots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", THEMES)
@pytest.mark.parametrize("name", ["copying", "qkv"])
def test_plots_have_the_colours_of_the_theme(labs, name, scheme):
    labs.page.emulate_media(color_scheme=scheme)
    show(labs, f"lab={name}")
    labs.wait_for(f'html[data-theme="{scheme}"]', 1)
    background, colours = labs.page.evaluate(PIXEL)
    assert background == THEMES[scheme].background
    assert colours > 50
    labs.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("name", ["copying", "qkv"])
def test_a_saved_plot_is_complete(labs, name):
    show(labs, f"lab={name}")
    with labs.page.expect_download() as download:
        labs.page.get_by_role("button", name="Save SVG").click()
    assert download.value.suggested_filename == f"regard-{name}.svg"
    text = Path(download.value.path()).read_text("utf-8")
    ElementTree.fromstring(text)
    links = set(re.findall(r'xlink:href="#([^"]+)"', text))
    assert links
    assert links <= set(re.findall(r' id="([^"]+)"', text))
    assert not re.search(r"@\d+@", text)
    with labs.page.expect_download() as download:
        labs.page.get_by_role("button", name="Save PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


# --- craft ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1024, 1440, 1920])
@pytest.mark.parametrize("name", ["copying", "qkv"])
def test_nothing_is_wider_than_the_window(labs, name, width):
    labs.page.set_viewport_size({"width": width, "height": 900})
    show(labs, f"lab={name}")
    assert labs.page.evaluate("document.documentElement.scrollWidth") <= width
    labs.page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.parametrize("scheme", THEMES)
@pytest.mark.parametrize("fragment", ["lab=copying&beta=0", "lab=qkv"])
def test_everything_has_a_name_and_enough_contrast(labs, fragment, scheme):
    labs.page.emulate_media(color_scheme=scheme)
    show(labs, fragment)
    script = (Path(__file__).parent / "accessibility.js").read_text("utf-8")
    assert labs.page.evaluate(script) == []
    labs.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize(
    ("code", "words"), [("de", "Der Effekt ist da"), ("fr", "L’effet est présent")]
)
def test_the_interface_speaks(labs, code, words):
    show(labs)
    labs.page.locator("#language").select_option(code)
    ready(labs)
    assert words in verdict(labs)[1]
    labs.page.locator("#language").select_option("en")
    ready(labs)


# --- with models ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(open_view, small_labs, tmp_path_factory):
    out = tmp_path_factory.mktemp("both") / "page.html"
    packs = [Pack(describe("first"), b"\x00")]
    build(packs, out, labs=small_labs, engine=DOUBLE.read_text("utf-8"))
    return open_view(out)


def test_models_and_labs_are_two_tabs(both):
    translate, labs = (both.page.get_by_role("tab", name=name) for name in ("Translate", "Labs"))
    assert both.page.locator(".lab").is_hidden()
    labs.click()
    assert both.page.locator(".lab").is_visible()
    assert both.page.locator("#translate").is_hidden()
    assert both.page.url.endswith("#lab=copying")
    both.page.keyboard.press("ArrowLeft")
    assert translate.get_attribute("aria-selected") == "true"
    assert "model=first" in both.page.url
    both.page.goto(f"{both.file.as_uri()}#lab=qkv")
    assert labs.get_attribute("aria-selected") == "true"
    both.restore(text="one two", model="first")
    assert both.output() == "eno owt"
    assert translate.get_attribute("aria-selected") == "true"


def test_a_page_can_open_with_a_lab(both, browser):
    page = browser.new_page()
    page.goto(f"{both.file.as_uri()}#lab=qkv")
    page.locator(".check-list").first.wait_for()
    assert page.get_by_role("tab", name="Labs").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Translate").click()
    page.locator(".token").first.wait_for()
    page.close()
