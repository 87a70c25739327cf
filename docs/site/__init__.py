"""How the site is built: `python -m docs.site`, which `make docs` runs.

contents     which page stands where
stage        our Markdown files and the generated pages, in one source folder
inserts      what the comments `<!-- site: ... -->` of a page stand for: tables, pictures, live pages
pictures     pictures that a few lines of the library draw
reference    pages on commands, settings, labs and the Python API
mathml       Sphinx extension: formulas as MathML, with a font of our own
docstrings   Sphinx extension: our docstrings, which are plain text, as reStructuredText
check        links, anchors, pictures and requests of the finished site
"""
