from regard.tables import markdown_table, read_markdown_table


def test_a_table_is_read_back():
    rows = [["system", "BLEU", ""], ["a|b", "± 1.5", ""], ["--", ":-", "x"]]
    text = markdown_table(rows) + "\nTwo seeds; greedy.\n\n    regard compare a\n\nFailed: a|b\n"
    assert read_markdown_table(text) == (
        tuple(map(tuple, rows)),
        ("Two seeds; greedy.", "Failed: a|b"),
    )
    assert read_markdown_table("") == ((), ())
