"""The page of side-by-side outputs: which sentences, and how they are written."""

import pytest

from regard.compare.outputs import COUNT, plain, side_by_side, spread


def test_sentences_are_the_middles_of_equal_parts_by_length():
    sources = ["x" * (n * 7 % 13) for n in range(13)]  # every length from 0 to 12 once
    lengths = [len(sources[row]) for row in spread(sources, 5)]
    assert lengths == [1, 3, 6, 9, 11]  # floor(13 (2 i + 1) / 10)


def test_equals_stand_in_order_and_a_small_split_is_shown_whole():
    assert spread(["aa"] * 4, 2) == [1, 3]
    assert spread(["ccc", "a", "bb"]) == [1, 2, 0]
    assert spread(["one"]) == [0]
    assert len(spread([str(n) for n in range(1000)])) == COUNT
    assert len(set(spread([str(n) for n in range(1000)]))) == COUNT


def test_the_page():
    pairs = [(f"<U> a|b_{n}", f"A|B {n}") for n in range(30)]
    outputs = {"score dot": [f"dot {n}" for n in range(30)], "score mean": ["*", *"b" * 29]}
    page = side_by_side(pairs, outputs, "val")
    assert "12 of the 30 sentences of the val split, chosen by length alone" in page
    assert page.count("## Sentence ") == 12
    first = page.split("## Sentence ")[1]
    assert first.splitlines() == [
        "2 (9 characters)",
        "",
        "| | |",
        "|---|---|",
        r"| *source* | &lt;U&gt; a\|b\_1 |",
        r"| *reference* | A\|B 1 |",
        "| score dot | dot 1 |",
        "| score mean | b |",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n c ", "a b c"),
        ("1 < 2 & 3", "1 &lt; 2 &amp; 3"),
        (r"\*_`[x]~#$", r"\\\*\_\`\[x\]\~\#\$"),
        ('"so", he said', '"so", he said'),
    ],
)
def test_markdown_shows_text_as_it_stands(text, shown):
    assert plain(text) == shown
