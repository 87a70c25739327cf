"""Every figure on a page comes from somewhere: see `tests.stories.figures`."""

import pytest

from tests.stories.conftest import read_page
from tests.stories.figures import ROOT, missing, read_figures

WRITTEN = "docs/labs/labs.md"  # the report of `regard lab --all`
PAGES = [
    "README.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")),
    *sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.ipynb")),
]
PAGES.remove(WRITTEN)
SOURCES = ("results/", "src/regard/shipped/", WRITTEN)


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_has_its_source(page):
    for block in read_figures(read_page(ROOT / page)):
        files = [source for source in block.sources if source not in ("set", "printed")]
        for source in files:
            name, _, anchor = source.partition("#")
            assert name.startswith(SOURCES), f"{page}: {source} is no source of figures"
            assert (ROOT / name).is_file(), f"{page}: there is no {name}"
            assert anchor or not name.endswith(".md"), f"{page}: which section of {name}?"
        if block.sources == ["printed"]:
            continue  # test_docs.py has what is printed
        assert not missing(block), f"{page}, line {block.line}: {missing(block)} not in {files}"


def test_figures_of_a_page_are_found():
    """Measured numbers count; code, formulas, versions, row numbers and addresses do not."""
    text = """# T 1

Python 3.11, `0.5`, $x = 0.5$, [a](b-0.5.md), a 95 % confidence interval, 12 heads, 127.0.0.1.

<!-- figures: set -->
At most 1,000 texts
in 30 s.

<!-- figures: results/README.md printed -->
| 7 | name | 31.5 | **12** |

It is 6.6 % or 3 times as much.

```text
0.25 s
```
"""
    blocks = list(read_figures(text))
    assert [(b.line, b.sources, b.figures) for b in blocks] == [
        (5, ["set"], ["1,000", "30"]),
        (9, ["results/README.md", "printed"], ["31.5", "12"]),
        (12, [], ["6.6", "3"]),
    ]


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        (
            "<!-- figures: results/speed.md#decoding-on-a-gpu -->\nIt has 43.05 BLEU.",
            [],
        ),
        (
            "<!-- figures: results/speed.md#decoding-on-a-gpu -->\nIt has 28.27 BLEU.",
            ["28.27"],
        ),
        ("<!-- figures: results/shipped/results.json -->\nIt has 52.3 BLEU.", []),
        ("<!-- figures: src/regard/shipped/de-en/card.json -->\nIt has 7.8 M.", []),
        ("It has 52.3 BLEU.", ["52.3"]),
        ("<!-- figures: set -->\nIt has 52.3 BLEU.", []),
        ("<!-- figures: printed -->\nIt has 1.5 BLEU and 2.5.", ["2.5"]),
    ],
)
def test_figures_without_a_source_are_found(sentence, found):
    [block] = read_figures(sentence)
    assert missing(block, printed="1.5 and 21") == found
