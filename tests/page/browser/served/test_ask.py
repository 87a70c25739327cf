"""Translating with a server: the view of an exported page, the numbers of Python; errors, and the token."""

from pathlib import Path

import pytest

import regard
from regard.serve.settings import Settings
from tests.page.browser.conftest import SENTENCE
from tests.page.browser.served.conftest import TOKEN, accessibility_problems
from tests.serve.conftest import serve


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
    # The first is held back; to unroute it now would let it go on.
    hold = lambda route: route.continue_() if held else held.append(route)  # noqa: E731
    view.page.route("**/api/page", hold)
    view.page.locator("#input").fill("Ja.")
    view.page.locator('[aria-busy="true"]').wait_for()
    view.page.locator("#input").fill("Guten Morgen!")
    view.wait_for_output(regard.load("de-en").translate(["Guten Morgen!"])[0].text)
    assert len(held) == 1
    assert held[0].request.failure == "net::ERR_ABORTED"
    view.page.unroute("**/api/page")


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
