"""Sphinx extension: formulas as MathML, which browsers draw without a script, in the font STIX Two Math.

Nothing is loaded from anywhere: the font comes from the package ziamath, and is written beside the style
sheet with the characters that formulas need.
"""

from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes
from fontTools.subset import Options, Subsetter, load_font, save_font
from latex2mathml.converter import convert
from sphinx.application import Sphinx

FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"
# Latin, Greek, punctuation, letter-like symbols, arrows, operators, brackets, alphanumeric symbols.
CHARACTERS = (
    *((0x20, 0x17F), (0x2B0, 0x3FF), (0x2000, 0x21FF), (0x2200, 0x23FF), (0x27C0, 0x27EF)),
    *((0x2900, 0x2AFF), (0x1D400, 0x1D7FF)),
)


def to_mathml(latex: str, display: str) -> str:
    return convert(latex.strip(), display=display)


def visit_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(to_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<span class="formula">{to_mathml(node.astext(), "block")}</span>\n')
    raise nodes.SkipNode


def write_font(app: Sphinx, error: Exception | None) -> None:
    """The font with the characters of formulas, and its table of measures for them."""
    target = Path(app.outdir) / "_static" / "math.woff"
    if error or target.exists():
        return
    options = Options(flavor="woff", layout_features=["*"], drop_tables=["DSIG"])
    font = load_font(str(FONT), options)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=[c for low, high in CHARACTERS for c in range(low, high + 1)])
    subsetter.subset(font)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_font(font, str(target), options)


def depart(translator: Any, node: nodes.Node) -> None:
    """Nothing: the visit was everything."""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(visit_math, depart),
        block_renderers=(visit_math_block, depart),
    )
    app.connect("build-finished", write_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
