"""How a token is written: visible, short, dimmed when it is not content."""

import pytest

from regard.diagrams.tokens import LONGEST, Label, label


@pytest.mark.parametrize(
    ("token", "text"), [(" ", "␣"), ("\n", "↵"), ("\t", "⇥"), ("", "∅"), ("\u200b", "U+200B")]
)
def test_what_cannot_be_seen_gets_a_dimmed_symbol(token: str, text: str) -> None:
    assert label(token) == Label(text, dimmed=True)


@pytest.mark.parametrize("token", ["<pad>", "<begin>", "<end>", "<unk>"])
def test_special_tokens_are_dimmed(token: str) -> None:
    assert label(token) == Label(token, dimmed=True)


@pytest.mark.parametrize("token", ["<U>", "end", "$x_1$", "a\\b", "漢字", "two words"])
def test_content_stays_as_it_is(token: str) -> None:
    assert label(token) == Label(token, dimmed=False)


def test_spaces_at_the_edge_and_breaks_inside_are_shown() -> None:
    assert label(" a b  ").text == "␣a b␣␣"
    assert label("a\nb\tc").text == "a↵b⇥c"


def test_what_xml_forbids_is_replaced() -> None:
    assert label("a\x00b\ud800c\uffff").text == "a\ufffdb\ufffdc\ufffd"


def test_long_tokens_are_shortened_with_an_ellipsis() -> None:
    assert label("x" * LONGEST).text == "x" * LONGEST
    assert label("x" * (LONGEST + 1)).text == "x" * (LONGEST - 1) + "…"
    assert label("x" * 99, longest=None).text == "x" * 99
