"""Attention diagrams of a few validation sentences, drawn at the end of a run."""

from itertools import islice
from pathlib import Path

from regard.diagrams import draw
from regard.errors import UserError
from regard.text import corpus, moses
from regard.text.corpus import Corpus
from regard.translator import Translator

EXAMPLES = 3


def draw_examples(translator: Translator, data: Corpus, folder: Path) -> None:
    """Draw the cross-attention of the first validation sentences, if the model has any."""
    if translator.config.is_language_model:
        return
    settings, pairs = translator.config.data, data["val"]
    if moses.is_preprocessed(settings):  # `translate` takes raw text
        pairs = corpus.load_split(settings, "val", raw=True)
    sources = (source for source, _ in pairs if can_encode(translator, source))
    texts = list(islice(sources, EXAMPLES))
    outputs = zip(texts, translator.translate(texts), strict=True)
    for number, (text, output) in enumerate(outputs, start=1):
        if "cross" in output.attention:
            path = folder / f"{number}.png"
            draw(path, output.attention, output.source, output.target, title=text)


def can_encode(translator: Translator, text: str) -> bool:
    """Whether the text is short enough and has only characters of the training data."""
    try:
        translator.encode_source(text, "the text")
    except UserError:
        return False
    return True
