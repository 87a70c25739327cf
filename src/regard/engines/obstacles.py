"""Which models CTranslate2 can express; for every other setting, why not."""

from typing import Any

from regard import config
from regard.config import Config
from regard.errors import UserError

EXPRESSIBLE: dict[str, frozenset[str]] = {
    "model": frozenset({"transformer", "decoder-only"}),
    "mixer": frozenset({"attention"}),
    "attention": frozenset({"multi-head"}),
    "attention.score": frozenset({"scaled-dot", "dot", "bilinear", "mean", "dummy"}),
    "attention.normaliser": frozenset({"softmax"}),
    "attention_mask": frozenset({"causal"}),
    "position": frozenset(
        {"none", "sinusoidal", "learned", "relative", "alibi", "rotary", "interleaved"}
    ),
    "position.form": frozenset({"query"}),
    "position.scaling": frozenset({"none", "linear", "ntk", "yarn"}),
    "activation": frozenset({"relu", "gelu", "swiglu"}),
    "norm": frozenset({"layer", "rms"}),
    "norm_position": frozenset({"pre", "post"}),
}
OBSTACLES: dict[str, dict[str, str]] = {
    "model": {
        "recurrent": "CTranslate2 has Transformers only",
        "pretrained": "CTranslate2 converts Hugging Face checkpoints itself, with "
        "ct2-transformers-converter",
    },
    "mixer": {"state-space": "CTranslate2 has no state-space layer"},
    "attention": {"latent": "CTranslate2 has no compressed keys and values"},
    "attention.score": {
        "additive": "the scores of CTranslate2 are dot products",
        "location": "the scores of CTranslate2 are dot products",
    },
    "attention.normaliser": dict.fromkeys(
        ("argmax", "sparsemax", "none"), "the only normaliser of CTranslate2 is softmax"
    ),
    "attention_mask": {"prefix": "a decoder of CTranslate2 reads its source with a causal mask"},
    "position.form": {
        "bias": "in CTranslate2 all layers share one relative bias, here each has its own"
    },
    "position.scaling": {
        "dynamic-ntk": "rotations of CTranslate2 do not depend on the length at hand"
    },
}
CUSTOM = "it is not one of Regard's own, so CTranslate2 cannot know it"


def find_obstacles(settings: Config, joint: bool) -> dict[str, str]:
    """{'model.position.scaling = "dynamic-ntk"': why CTranslate2 cannot express it, ...}

    `joint`: do source and target share a vocabulary?
    """
    chosen = choices(settings.model)
    found = {
        f'{setting_path(name)} = "{value}"': OBSTACLES.get(name, {}).get(value, CUSTOM)
        for name, value in chosen.items()
        if value not in EXPRESSIBLE[name]
    }
    return found | find_combinations(settings.model, joint)


def setting_path(name: str) -> str:
    tables = ("model", "mixer", "attention", "attention.score", "attention.normaliser", "position")
    path = name if name == "model" else f"model.{name}"
    return f"{path}.kind" if name in tables else path


def choices(table: Any) -> dict[str, str]:
    """The settings that have kinds, with the kind chosen; of a model that is no Transformer, only its own."""
    chosen = {"model": table.kind}
    if not isinstance(table, config.TransformerBase):
        return chosen
    attention, position = table.attention, table.position
    chosen |= {
        "mixer": table.mixer.kind,
        "attention": attention.kind,
        "attention.score": attention.score.kind,
        "attention.normaliser": attention.normaliser.kind,
        "position": position.kind,
        "activation": table.activation,
        "norm": table.norm,
        "norm_position": table.norm_position,
    }
    optional = {
        "attention_mask": getattr(table, "attention_mask", None),
        "position.form": getattr(position, "form", None),
        "position.scaling": getattr(position, "scaling", None),
    }
    return chosen | {name: value for name, value in optional.items() if value is not None}


def find_combinations(table: Any, joint: bool) -> dict[str, str]:
    """Settings that only some values of others make impossible."""
    if not isinstance(table, config.TransformerBase):
        return {}
    found = {}
    attention, position, heads = table.attention, table.position, table.attention.heads
    if attention.window is not None:
        found[f"model.attention.window = {attention.window}"] = (
            "CTranslate2 has no window mask for tokens that it reads at once"
        )
    if isinstance(position, config.Alibi) and isinstance(table, config.Transformer):
        found['model.position.kind = "alibi"'] = "an encoder of CTranslate2 has no ALiBi"
    elif isinstance(position, config.Alibi) and heads & (heads - 1):
        found[f"model.attention.heads = {heads} with ALiBi"] = (
            "CTranslate2 has the same slopes only if the number of heads is a power of two"
        )
    if attention.score.kind == "bilinear" and isinstance(position, config.RotaryBase):
        found['model.attention.score.kind = "bilinear" with rotary positions'] = (
            "its matrix comes after the rotation, where CTranslate2 has none"
        )
    if isinstance(table, config.DecoderOnly) and not joint:
        found["tokenizer.joint = false"] = "a decoder of CTranslate2 has one vocabulary"
    return found


def check_expressible(settings: Config, joint: bool) -> None:
    """Raise an error that names every setting that CTranslate2 cannot express."""
    found = find_obstacles(settings, joint)
    if found:
        reasons = "; ".join(f"{setting} ({reason})" for setting, reason in found.items())
        raise UserError(f"CTranslate2 cannot express this model: {reasons}. Use the engine pytorch")
