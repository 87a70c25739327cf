"""Pages inside notebooks: a frame with the whole page in it, so that nothing is requested from anywhere."""

import base64
from importlib import import_module
from itertools import chain
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.page.build import escape_html, render
from regard.translation import Translation

HEIGHT = 760  # CSS pixels
# What the page needs, and no more: it cannot read the notebook, or send anything.
PERMISSIONS = "allow-scripts allow-downloads"


def render_translation(translation: Translation) -> str:
    """A page without a model: the tokens and the attention of this translation and of its n-best list."""
    outputs = [translation, *(other for other in translation.alternatives if other.weights)]
    recordings = [record(output, rank) for rank, output in enumerate(outputs, start=1)]
    return render([], title=translation.text, translations=recordings)


def record(translation: Translation, rank: int) -> dict[str, Any]:
    """A translation as the page reads it, and what takes the place of its model there."""
    attention = translation.attention
    return {
        "info": {
            "name": f"{rank}. {translation.text}",
            "heads": {name: list(weights.shape[:2]) for name, weights in attention.items()},
            "examples": [" ".join(chain(translation.source, translation.target))],
        },
        "translation": {
            "text": translation.text,
            "source": translation.source,
            "target": translation.target,
            "score": translation.score,
            "attention": {name: encode_tensor(weights) for name, weights in attention.items()},
        },
    }


def encode_tensor(tensor: Tensor) -> dict[str, Any]:
    numbers = tensor.float().cpu().contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(tensor.shape), "data": base64.b64encode(numbers).decode("ascii")}


def frame(page: str, height: int = HEIGHT) -> str:
    """The page as one HTML element, in ASCII: so the encoding of what is around it does not matter."""
    inside = escape_html(page).encode("ascii", "xmlcharrefreplace").decode("ascii")
    return (
        f'<iframe srcdoc="{inside}" sandbox="{PERMISSIONS}" width="100%" height="{height}" '
        'style="border: 0" title="Regard"></iframe>'
    )


def show(page: str, height: int = HEIGHT) -> None:
    """Display the page below the cell of the notebook that is running."""
    if not isinstance(height, int) or height < 1:
        raise UserError(f"height is a number of pixels, 1 or more: got {height!r}")
    try:
        ipython = import_module("IPython")
        display = import_module("IPython.display").display
    except ImportError:
        raise UserError(f"IPython is not installed: {ADVICE}") from None
    if ipython.get_ipython() is None:
        raise UserError(f"this Python is not a notebook: {ADVICE}")
    texts = {"text/html": frame(page, height), "text/plain": "a page of Regard, for notebooks"}
    display(texts, raw=True)


ADVICE = (
    "pages are displayed in Jupyter and Colab; elsewhere, regard page RUN opens one in the browser"
)
