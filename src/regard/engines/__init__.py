"""Engines: what searches for a translator's outputs. Attention weights are always computed by the model.

`pytorch` is the loop in `regard.translator`. `ctranslate2` runs the same weights in CTranslate2: `obstacles`
(which models it can express), `conversion` (a model as its specification), `ctranslate2` (the search),
`shortlist` (few candidates for its output projection).
"""

from pathlib import Path
from typing import Any

from regard.errors import UserError, join_names, suggest

ENGINES = ("pytorch", "ctranslate2")


def parse_engine(text: Any) -> tuple[str, Path | None]:
    """(name, folder) of 'pytorch', 'ctranslate2' or 'ctranslate2:FOLDER', a folder that `export` wrote."""
    if not isinstance(text, str):
        raise UserError(f"engine is a name, {join_names(ENGINES)}: got {text!r}")
    name, _, folder = text.partition(":")
    if name not in ENGINES or (folder and name == "pytorch"):
        raise UserError(
            f'engine: got "{text}"; choose {join_names(ENGINES)} or ctranslate2:FOLDER, a folder written '
            f"by `regard export --to ctranslate2`.{suggest(name, ENGINES)}"
        )
    return name, Path(folder) if folder else None
