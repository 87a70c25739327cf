"""A run for the page's engine: a JSON manifest, and one binary with its tensors.

    manifest   info        what the page says about the model (`schema.ModelInfo`)
               model       the resolved [model] table of its config; `search` and `tokenizers` likewise
               tensors     name, shape, dtype, offset in the binary, and the offset of an int8 matrix's scales
    binary     tensors one after the other, little-endian, each at a multiple of four bytes

Matrices are int8, with a float32 scale for each row, as in the files of shipped models; or all is float32.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.errors import UserError
from regard.models import Ensemble, Model, weights
from regard.models.intervene import count_heads
from regard.page.schema import ModelInfo
from regard.text import corpus
from regard.text.moses import is_preprocessed
from regard.translator import Translator

ALIGNMENT = 4  # bytes: what a view of float32 numbers needs
SHORT = 80  # characters of an example
MOST_EXAMPLES = 5

# The reasons are those of the engine (engine/worker.js); a test compares them.
NOT_OURS = "its layers and its tokenizer are those of another library"
UNSUPPORTED: dict[str, dict[str, str]] = {
    "model": {"pretrained": NOT_OURS},
    "tokenizer": {"pretrained": NOT_OURS},
    "mixer": {"state-space": "a state space has no attention weights to show"},
}

# Our own sentences, by source language or synthetic task.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "de": (
        "Ein Mann schläft auf einer grünen Bank.",
        "Ich habe gestern ein Buch gekauft, das ich noch nicht gelesen habe.",
        "Der kleine Hund läuft über die Straße.",
        "Weil es regnet, bleiben wir heute zu Hause.",
        "Kannst du mir sagen, wie spät es ist?",
    ),
    "en": (
        "A man is sleeping on a green bench.",
        "The little dog runs across the street.",
        "Can you tell me what time it is?",
    ),
    "fr": (
        "Un homme dort sur un banc vert.",
        "Je n'ai pas encore lu le livre que j'ai acheté hier.",
        "Peux-tu me dire quelle heure il est ?",
    ),
    "case": ("<U> I am a student", "<L> I am a student", "<U> We like tea"),
    "reverse": ("I am a student", "We like tea"),
    "copy": ("I am a student", "We like tea"),
}


def pack(translator: Translator, name: str, float32: bool = False) -> tuple[dict[str, Any], bytes]:
    """(manifest, binary) of a model that the page calls `name`."""
    check_supported(translator.config, name)
    settings, model = translator.config, translator.model
    if isinstance(model, Ensemble):
        raise UserError(
            f"{name} cannot run in a page: it is an ensemble, and the page runs one model at a time. Use it "
            "with `regard translate` or `regard serve`, or export one of its runs"
        )
    tensors = {key: tensor.float().cpu() for key, tensor in weights.state_tensors(model).items()}
    table, binary = pack_tensors(tensors if float32 else weights.quantize_tensors(tensors))
    manifest = {
        "info": describe(translator, name).model_dump(mode="json"),
        "model": settings.model.model_dump(mode="json"),
        "search": settings.search.model_dump(mode="json"),
        "tokenizers": translator.tokenizers.to_json(),
        "tensors": table,
    }
    return manifest, binary


def check_supported(settings: config.Config, name: str) -> None:
    """Raise an error for a model that the engine cannot run."""
    if settings.is_language_model:
        raise UserError(
            f"{name} cannot run in a page: it is a language model, which has no source to translate. Use it "
            "with `regard translate`, or export another model"
        )
    if is_preprocessed(settings.data):
        raise UserError(
            f'{name} cannot run in a page: its data.preprocess is "moses", and the page cannot preprocess '
            "what is typed. Use it with `regard translate` or `regard serve`, or export another model"
        )
    for setting, table in find_tables("model", settings.model):
        reason = UNSUPPORTED.get(setting, {}).get(getattr(table, "kind", ""))
        if isinstance(table, config.Custom):
            reason = "it is your own kind, and the page knows only those of Regard"
        if reason is not None:
            raise UserError(
                f'{name} cannot run in a page: its {setting} is "{table.kind}", and {reason}. Use it with '
                "`regard translate`, or export another model"
            )


def find_tables(setting: str, table: config.Table) -> Iterator[tuple[str, Any]]:
    """The table of a setting, and all tables inside it."""
    yield setting, table
    for field in type(table).model_fields:
        value = getattr(table, field)
        if isinstance(value, config.Table):
            yield from find_tables(field, value)


def pack_tensors(tensors: dict[str, Tensor]) -> tuple[list[dict[str, Any]], bytes]:
    """(table, binary) of float32 tensors and int8 matrices with their scales."""
    offsets: dict[str, int] = {}
    binary = bytearray()
    for name, tensor in tensors.items():
        offsets[name] = len(binary)
        binary += to_bytes(tensor)
        binary += bytes(-len(binary) % ALIGNMENT)
    table = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "offset": offsets[name],
            "scales": offsets.get(name + weights.SCALES),
        }
        for name, tensor in tensors.items()
        if not name.endswith(weights.SCALES)
    ]
    return table, bytes(binary)


def to_bytes(tensor: Tensor) -> bytes:
    assert sys.byteorder == "little", "a page's numbers are little-endian"
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def describe(translator: Translator, name: str) -> ModelInfo:
    """What the page says about the model."""
    settings, tokenizers = translator.config, translator.tokenizers
    data = settings.data
    languages = (
        {"source_language": data.source, "target_language": data.target}
        if isinstance(data, config.DatasetData)
        else {}
    )
    return ModelInfo(
        name=name,
        kind=settings.model.kind,
        heads=describe_heads(translator.model),
        parameters=translator.model.parameter_count,
        tokenizer=tokenizers.source.kind,
        examples=choose_examples(data),
        facts=collect_facts(translator),
        **languages,
    )


def describe_heads(model: Model) -> dict[str, tuple[int, int]]:
    """(layers, heads) of each mechanism; none if the members of an ensemble differ too much to show them."""
    try:
        return {**count_heads(model)}
    except UserError:
        return {}


def choose_examples(data: config.Data) -> tuple[str, ...]:
    """Our own sentences, or else short ones of the data that the run was trained on, if it is still there."""
    subject = data.name if isinstance(data, config.SyntheticData) else getattr(data, "source", None)
    is_remote = isinstance(data, config.HubData) and data.name.startswith(
        "hf:"
    )  # would be downloaded
    if subject in EXAMPLES or isinstance(data, config.DatasetData) or is_remote:
        return EXAMPLES.get(subject or "", ())
    for split in ("test", "val"):
        with suppress(UserError, OSError):
            texts = (source.strip() for source, _ in corpus.load_split(data, split))
            short = (text for text in texts if 0 < len(text) <= SHORT)
            if found := tuple(islice(dict.fromkeys(short), MOST_EXAMPLES)):
                return found
    return ()


def collect_facts(translator: Translator) -> dict[str, str]:
    """Lines about vocabulary, training and terms; those that are known. ui/texts.js has their titles."""
    tokenizers, card = translator.tokenizers, translator.card or {}
    sizes = f"{tokenizers.source.vocab_size:,}"
    if not tokenizers.joint:
        sizes += f" · {tokenizers.target.vocab_size:,}"
    facts = {"description": translator.config.description, "vocabulary": sizes}
    figures, terms = card.get("figures", {}), card.get("terms", {})
    if seconds := figures.get("training_seconds"):
        facts["training"] = " · ".join(
            [f"{seconds / 60:.0f} min", *filter(None, [card.get("device")])]
        )
    facts |= {key: terms.get(key, "") for key in ("licence", "attribution", "domain")}
    return {key: text for key, text in facts.items() if text}
