"""The page of side-by-side outputs: which sentences it samples, and how it formats them."""

from regard.compare.outputs import SAMPLE_SIZE, format_outputs, sample_by_length


def test_the_sample_is_the_middle_of_equal_parts_by_length():
    sources = ["x" * (n * 7 % 13) for n in range(13)]  # every length from 0 to 12 once
    lengths = [len(sources[row]) for row in sample_by_length(sources, 5)]
    assert lengths == [1, 3, 6, 9, 11]  # floor(13 (2 i + 1) / 10)


def test_equal_lengths_keep_their_order_and_a_small_split_is_shown_in_full():
    assert sample_by_length(["aa"] * 4, 2) == [1, 3]
    assert sample_by_length(["ccc", "a", "bb"]) == [1, 2, 0]
    assert sample_by_length(["one"]) == [0]
    rows = sample_by_length([str(n) for n in range(1000)])
    assert len(rows) == len(set(rows)) == SAMPLE_SIZE


def test_the_page():
    pairs = [(f"<U> a|b_{n}", f"A|B {n}") for n in range(30)]
    outputs = {"score dot": [f"dot {n}" for n in range(30)], "score mean": ["*", *"b" * 29]}
    page = format_outputs(pairs, outputs, "val")
    assert "12 of the 30 sentences of the val split, selected by length only" in page
    assert page.count("## Sentence ") == 12
    first = page.split("## Sentence ")[1]
    assert first.splitlines() == [
        "2 (9 characters)",
        "",
        "| | |",
        "|---|---|",
        r"| *source* | &lt;U> a\|b_1 |",
        r"| *reference* | A\|B 1 |",
        "| score dot | dot 1 |",
        "| score mean | b |",
        "",
    ]
