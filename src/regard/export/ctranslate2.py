"""A run as a CTranslate2 model: a folder for `ctranslate2.Translator` or `ctranslate2.Generator`.

It is also an engine of Regard: `regard translate RUN --engine ctranslate2:FOLDER`.
"""

from pathlib import Path
from typing import Any

from regard import files
from regard.engines.folders import check_convertible, write_model
from regard.engines.shortlist import make_shortlist
from regard.loading import load
from regard.text.hub import find_run


def export_ctranslate2(
    run: Path, out: Path, int8: bool = False, shortlist: int | None = None
) -> dict[str, Any]:
    """Write the folder. `shortlist`: how many candidates each source token has in the shortlist, if any."""
    translator = load(run)
    settings, tokenizers, folder = translator.config, translator.tokenizers, find_run(run)
    check_convertible(settings, tokenizers)
    vmap = None if shortlist is None else make_shortlist(settings, tokenizers, shortlist)
    write_model(settings, tokenizers, translator.model, out, folder, int8, vmap)
    return {
        "files": sorted(path.name for path in files.list_files(out)),
        "bytes": sum(path.stat().st_size for path in files.list_files(out)),
        "weights": "int8" if int8 else "float32",
        "shortlist": shortlist,
        "class": "Generator" if translator.model.is_decoder_only else "Translator",
    }
