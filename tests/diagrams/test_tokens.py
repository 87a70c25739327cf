"""Displayed tokens: visible, short, and dimmed if not content."""

import pytest

from regard.diagrams.tokens import MAX_LENGTH, Label, format_token


@pytest.mark.parametrize(
    ("token", "text"), [(" ", "␣"), ("\n", "↵"), ("\t", "⇥"), ("", "∅"), ("\u200b", "U+200B")]
)
def test_invisible_tokens_get_a_dimmed_symbol(token: str, text: str) -> None:
    assert format_token(token) == Label(text, dimmed=True)


@pytest.mark.parametrize("token", ["<pad>", "<begin>", "<end>", "<unk>"])
def test_special_tokens_are_dimmed(token: str) -> None:
    assert format_token(token) == Label(token, dimmed=True)


@pytest.mark.parametrize("token", ["<U>", "end", "$x_1$", "a\\b", "漢字", "two words"])
def test_content_is_unchanged(token: str) -> None:
    assert format_token(token) == Label(token, dimmed=False)


def test_outer_spaces_and_inner_line_breaks_are_visible() -> None:
    assert format_token(" a b  ").text == "␣a b␣␣"
    assert format_token("a\nb\tc").text == "a↵b⇥c"


def test_characters_forbidden_in_xml_are_replaced() -> None:
    assert format_token("a\x00b\ud800c\uffff").text == "a\ufffdb\ufffdc\ufffd"


def test_long_tokens_are_truncated_with_an_ellipsis() -> None:
    assert format_token("x" * MAX_LENGTH).text == "x" * MAX_LENGTH
    assert format_token("x" * (MAX_LENGTH + 1)).text == "x" * (MAX_LENGTH - 1) + "…"
    assert format_token("x" * 99, max_length=None).text == "x" * 99
