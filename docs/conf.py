"""Sphinx: how the pages of `build/site-source` (see `docs.site`) become the site."""

# ruff: noqa: A001
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import regard  # noqa: E402

project = "Regard"
author = "The Regard authors"
copyright = "The Regard authors, Apache-2.0"
version = release = regard.__version__
language = "en"
root_doc = "index"
smartquotes = False  # "--resume" is no dash
exclude_patterns = ["_extra"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "docs.site.mathml",
    "docs.site.docstrings",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
nb_execution_mode = "off"  # docs/site/notebooks.py executes them, in both themes
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
pygments_style = "default"
pygments_dark_style = "github-dark"
suppress_warnings = [
    "myst.header",  # some pages start a list of parts with a heading two levels down
    "misc.highlighting_failure",  # "..." in a transcript
]

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "Regard"
html_favicon = str(ROOT / "docs" / "site" / "static" / "favicon.svg")
html_static_path = [str(ROOT / "docs" / "site" / "static")]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#5ab4f0", "color-brand-content": "#5ab4f0"},
}
