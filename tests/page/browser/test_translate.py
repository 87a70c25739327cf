"""Translating in the exported page: with both shipped models, and with the test double."""

import pytest

import regard
from tests.page.browser.conftest import SENTENCE


def test_greedy_output_is_that_of_python(real):
    real.restore(text=SENTENCE, model="de-en", model2="de-en-gru")
    for panel, name in enumerate(("de-en", "de-en-gru")):
        expected = regard.load(name).translate([SENTENCE])[0]
        assert real.output(panel) == expected.text
        labels = [token.split("\n")[0] for token in real.tokens("output", panel).all_inner_texts()]
        assert labels == list(expected.target)
        assert real.score(panel) == pytest.approx(expected.score, abs=0.02)


def test_beam_search_shows_its_tree_and_finished_hypotheses(real):
    real.restore(text=SENTENCE, decoding="beam", beam=5, view="tree", model="de-en")
    assert real.output() == regard.load("de-en").translate([SENTENCE], beam=5)[0].text
    assert real.page.locator(".hypotheses li").count() >= 5
    assert real.page.locator(".figure").first.is_visible()


def test_sampling_depends_on_the_seed_only(real):
    outputs = []
    for seed in (1, 1, 2, 3, 4):
        fields = {"decoding": "sample", "temperature": 1.5, "seed": seed}
        real.restore(text=SENTENCE, model="de-en-gru", **fields)
        outputs.append(real.output())
    assert outputs[0] == outputs[1]
    assert len(set(outputs)) > 1


def test_a_translation_by_hand_gets_its_log_probability_and_attention(real):
    target = "A man sleeps on a green bench."
    real.restore(text=SENTENCE, model="de-en")
    real.page.locator('[data-control="byHand"]').check()
    real.page.locator("#target").fill(target)
    real.wait_for_output(target)
    expected = regard.load("de-en").explain([(SENTENCE, target)])[0]
    assert real.score() == pytest.approx(expected.score, abs=0.02)
    assert real.page.locator(".figure").is_visible()


def test_typing_translates_after_a_pause(double):
    double.restore(text="a b", model="first")
    double.page.locator("#input").fill("abc def")
    double.wait_for_output("cba fed")


def test_an_example_is_taken(double):
    double.restore(text="a b", model="first")
    double.page.locator('[data-control="example"]').select_option("four five")
    double.settle()
    assert double.output() == "ruof evif"


def test_an_outdated_request_is_dropped(double):
    double.restore(text="a b", model="first")
    script = """() => { const result = document.querySelector('.result');
        window.seen = [];
        const record = () => window.seen.push(result.textContent);
        new MutationObserver(record).observe(result, {childList: true}); }"""
    double.page.evaluate(script)
    area = double.page.locator("#input")
    for text in ("slow one", "slow two", "slow three"):
        area.fill(text)
        double.page.wait_for_timeout(280)
    double.wait_for_output("wols eerht")
    assert double.page.evaluate("window.seen") == ["wols eerht"]


def test_a_problem_is_one_sentence_and_passes(double):
    double.restore(text="a # b", model="first")
    problem = double.page.locator(".problem")
    assert problem.inner_text() == "This did not work: no words for #"
    double.restore(text="a b", model="first")
    assert problem.is_hidden()


def test_one_or_two_models(double):
    double.restore(text="a b", model="first")
    assert double.page.locator(".panel").count() == 1
    double.page.locator('[data-control="compare"]').check()
    double.settle()
    names = double.page.locator(".model select")
    assert [names.nth(panel).locator("option:checked").inner_text() for panel in (0, 1)] == [
        "first",
        "second",
    ]


@pytest.mark.parametrize("mechanism", ["cross", "encoder", "decoder"])
@pytest.mark.parametrize("view", ["heatmap", "lines"])
@pytest.mark.parametrize("head", ["mean", "all", 2])
def test_every_picture_is_drawn(mechanism, view, head, double):
    double.restore(
        text="one two", model="first", mechanism=mechanism, view=view, head=head, layer=1
    )
    assert double.colours(".stack canvas") > 10


def test_hovering_a_token_highlights_what_it_attends_to(double):
    double.restore(text="one two three", model="first", head=2, layer=1)  # looks one to the right
    double.tokens("output").nth(0).hover()
    weights = double.tokens("source").evaluate_all(
        "nodes => nodes.map((node) => Number(node.style.getPropertyValue('--weight')))"
    )
    assert max(range(4), key=weights.__getitem__) == 1
    assert double.colours(".above") > 1
    assert "eno attends most to two 0.85" in double.page.locator(".readout").inner_text()


def test_hovering_a_source_token_highlights_what_attends_to_it(double):
    double.restore(text="one two three", model="first", head=2, layer=1, view="lines")
    double.tokens("source").nth(1).hover()
    weights = double.tokens("output").evaluate_all(
        "nodes => nodes.map((node) => Number(node.style.getPropertyValue('--weight')))"
    )
    assert max(range(4), key=weights.__getitem__) == 0
    assert double.colours(".above") > 1


def test_hovering_a_cell_highlights_both_tokens(double):
    double.restore(text="one two three", model="first", head=1, layer=1)
    double.point(2, 1)
    assert "eerht → two: 0.050" in double.page.locator(".readout").inner_text()
    hovered = double.page.locator(".token.hovered").all_inner_texts()
    assert [text.strip() for text in hovered] == ["two", "eerht"]


def test_a_head_of_the_small_multiples_opens_by_a_click(double):
    double.restore(text="one two three", model="first", head="all")
    double.page.locator(".above").first.click(position={"x": 20, "y": 40})
    assert double.control("head").input_value() == "0"


def test_alternatives_have_probabilities(real):
    real.restore(text=SENTENCE, model="de-en")
    real.tokens("output").nth(0).click()
    names = real.page.locator(".alternative").all_inner_texts()
    assert len(names) == 8
    assert names[0].startswith("A\n")
    assert all("%" in name for name in names)


def test_playing_goes_from_token_to_token(double):
    double.restore(text="one two three", model="first")
    double.page.get_by_role("button", name="Play").click()
    assert double.page.locator(".token.later").count() == 3
    double.wait_for(".token.later", 2)
    double.page.get_by_role("button", name="Stop").click()
    assert double.page.locator(".token.later").count() == 0


LATE = 1300  # milliseconds after which the double's slow answer has arrived


def ask_slowly(view, text):
    """Restore a view, then write a text whose answer takes a second."""
    view.restore(text="one", model="first")
    view.page.locator("#input").fill(text)
    view.wait_for('[aria-busy="true"]', 1)


def test_a_late_answer_of_another_model_is_not_shown(double):
    ask_slowly(double, "who slow-first")
    double.page.locator(".model select").select_option(label="second")
    double.wait_for_output("second tsrif-wols")
    double.page.wait_for_timeout(LATE)
    assert double.output() == "second tsrif-wols"


def test_a_late_answer_to_a_text_that_was_cleared_is_not_shown(double):
    ask_slowly(double, "slow one")
    double.page.locator("#input").fill("")
    double.settle()
    double.page.wait_for_timeout(LATE)
    assert double.page.locator(".panel.empty").count() == 1


def test_facts_have_titles_in_every_language(open_view, real_file):
    titles = {}
    for locale in ("en-GB", "de-DE", "fr-FR"):
        view = open_view(real_file, locale=locale)
        titles[locale] = view.page.locator(".about").first.locator("dt").all_text_contents()
    assert titles["en-GB"][:3] == ["Layers × heads", "Description", "Vocabulary (tokens)"]
    assert "Lizenz" in titles["de-DE"]
    assert "Données" in titles["fr-FR"]
    assert not any(title.islower() for shown in titles.values() for title in shown)
