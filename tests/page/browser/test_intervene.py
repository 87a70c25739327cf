"""Interventions in the exported page: each changes the output at once, is listed, and can be removed."""

from tests.page.browser.conftest import SENTENCE


def pills(view):
    return [
        text.strip() for text in view.page.locator(".pills li:not(.bare) bdi").all_inner_texts()
    ]


def test_an_alternative_is_forced_and_the_model_goes_on(real):
    real.restore(text=SENTENCE, model="de-en")
    before = real.output()
    real.tokens("output").nth(2).click()
    real.page.locator(".alternative:not(.chosen)").first.click()
    real.settle()
    assert real.output() != before
    assert real.page.locator(".before bdi").inner_text() == before
    assert real.page.locator(".token.changed").count() >= 1
    assert real.page.locator(".token.forced").count() == 1
    assert pills(real)[0].startswith("Token 3 is")
    real.page.locator(".pills button").first.click()
    real.settle()
    assert real.output() == before
    assert real.page.locator(".changes").is_hidden()
    assert real.page.locator(".token.changed").count() == 0


def test_a_masked_source_token_is_not_translated(real):
    real.restore(text=SENTENCE, model="de-en-gru")
    before = real.output()
    real.tokens("source").nth(1).click()
    real.page.get_by_role("button", name="Mask this token").click()
    real.settle()
    assert real.output() != before
    assert real.page.locator(".token.masked").inner_text().startswith("Mann")
    real.page.get_by_role("button", name="Unmask this token").click()
    real.settle()
    assert real.output() == before


def test_painting_moves_the_weight_of_a_row(double):
    double.restore(text="one two three", model="first", layer=1, head=1)
    double.control("paint").click()
    double.point(0, 2, "click")
    assert double.output() == "three* owt eerht"
    assert pills(double) == ["“three*” attends to three (cross, all layers, all heads)"]
    assert "interventions=" in double.page.url
    double.control("scope").select_option("head")
    double.point(0, 1, "click")
    assert pills(double)[1] == "“two*” attends to two (cross, layer 1, head 1)"
    double.page.get_by_role("button", name="Remove all").click()
    double.settle()
    assert double.output() == "eno owt eerht"


def test_painting_by_dragging_changes_several_rows_at_once(double):
    double.restore(text="one two three", model="first", layer=1, head=1)
    if double.control("paint").get_attribute("aria-pressed") == "false":
        double.control("paint").click()
    double.control("scope").select_option("all")
    double.point(0, 2)
    double.page.mouse.down()
    double.point(1, 0)
    double.page.mouse.up()
    double.settle()
    assert double.output() == "three* one* eerht"
    double.control("paint").click()


def test_attention_is_moved_without_a_pointer(double):
    double.restore(text="one two three", model="first")
    double.tokens("output").nth(1).focus()
    double.page.keyboard.press("Enter")
    double.page.locator(".mover select").select_option("0")
    double.page.get_by_role("button", name="Move", exact=True).press("Enter")
    double.settle()
    assert double.output() == "eno one* eerht"


def test_a_head_is_ablated_and_stays_so_for_another_sentence(double):
    double.restore(text="one two three", model="first", layer=2, head=3)
    double.control("ablate").click()
    double.settle()
    assert double.output().startswith("ablated")
    assert pills(double) == ["Ablated (cross, layer 2, head 3)"]
    double.page.locator("#input").fill("four five")
    double.wait_for_output("ablated evif")
    assert pills(double) == ["Ablated (cross, layer 2, head 3)"]


def test_another_sentence_has_other_positions(double):
    double.restore(text="one two", model="first", interventions='[{"what":"mask","keys":[1]}]')
    assert double.output() == "eno ?"
    double.page.locator("#input").fill("four five")
    double.wait_for_output("ruof evif")
    assert double.page.locator(".changes").is_hidden()


def test_a_branch_of_the_tree_is_followed(double):
    double.restore(text="one two", model="first", decoding="beam", beam=2, view="tree")
    double.page.locator(".figure").focus()
    double.page.keyboard.press("ArrowDown")
    double.page.keyboard.press("ArrowDown")
    double.page.keyboard.press("Enter")
    double.settle()
    assert double.output() == "other owt"
    double.restore(text="one", model="first", decoding="beam", beam=2, view="heatmap")
    assert double.output() == "eno"  # the node that was hovered is gone


def test_interventions_can_be_removed_if_the_first_request_fails(open_view, double_file):
    view = open_view(double_file)
    view.page.goto(
        f"{double_file.as_uri()}#text=a+%23&interventions=" + '[{"what":"mask","keys":[0]}]'
    )
    view.page.reload()
    view.page.locator(".problem").wait_for()
    assert pills(view) == ["Masked: 1 (cross, all layers, all heads)"]
    view.page.get_by_role("button", name="Remove all").click()
    view.settle()
    assert view.page.locator(".changes").is_hidden()


def test_the_score_of_the_change_is_shown(real):
    real.restore(
        text=SENTENCE,
        model="de-en",
        interventions='[{"what":"ablate","mechanism":"cross","layer":3}]',
    )
    summary = real.page.locator(".changes .small").inner_text()
    assert "log-probability" in summary
    assert "tokens changed" in summary or "stays the same" in summary
