"""A run folder, a shipped model, or a run on the Hugging Face hub: its config, and its translator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard import checksums, documents, models, presets, schemas, shipped
from regard.config import Config
from regard.devices import resolve_device
from regard.engines import parse_engine
from regard.engines.ctranslate2 import load_engine
from regard.errors import UserError, join_names, suggest
from regard.models import Model, build, llama, weights
from regard.models.precision import cast_parameters
from regard.text import hub
from regard.text.agreement import share_tokenizers
from regard.text.tokenizer import TokenizerPair
from regard.translator import Translator


def load(
    run: str | Path | Sequence[str | Path],
    device: str | torch.device = "cpu",
    *,
    int8: bool = False,
    bfloat16: bool = False,
    engine: str = "pytorch",
) -> Translator:
    """The translator of a run folder or of a shipped model, `regard.load("de-en")`, with its best weights,
    packed for fast CPU inference, in int8 (on a CPU) or in bfloat16 (on a GPU).

    `hf:user/name` or `hf:user/name@revision` is a run on the Hugging Face hub, downloaded once. Several
    runs are an ensemble (see `regard.models.ensemble`), with the settings of the first. `engine`: see
    `regard.engines`.
    """
    runs = shipped.split_runs(run)
    if len(runs) == 1:
        return load_run(runs[0], device, int8, bfloat16, engine)
    if parse_engine(engine)[0] == "ctranslate2":
        names = join_names(map(str, runs))
        raise UserError(f"the engine ctranslate2 runs one model, not the ensemble of {names}")
    members = [load_run(one, device, int8, bfloat16, engine) for one in runs]
    configs, tokenizers = [one.config for one in members], [one.tokenizers for one in members]
    check_tasks([str(one) for one in runs], configs)
    shared = share_tokenizers([str(one) for one in runs], tokenizers)
    return Translator(configs[0], shared, models.Ensemble([one.model for one in members]))


def check_tasks(names: Sequence[str], configs: Sequence[Config]) -> None:
    """Raise an error unless all members of an ensemble are language models, or none is."""
    kinds = {config.is_language_model: name for name, config in zip(names, configs, strict=True)}
    if len(kinds) > 1:
        raise UserError(
            f"{kinds[True]} is a language model and {kinds[False]} is not: an ensemble is of one sort or the "
            "other"
        )


def load_run(
    run: str | Path, device: str | torch.device, int8: bool, bfloat16: bool, engine: str
) -> Translator:
    """`load` of a single run."""
    engine_name, engine_folder = parse_engine(engine)
    is_ctranslate2 = engine_name == "ctranslate2"
    folder = hub.find_run(run)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(
            f"{folder} contains no trained model yet: its training stopped before the first "
            f"validation; continue it with `regard train --resume {presets.folder_argument(folder)}`"
        )
    path = folder / "model.safetensors"
    # Before anything is built of what they say.
    checksums.verify_run(folder, weights.read_record(path).get("files", {}))
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    model = build(config.model, *sizes, tokenizers.joint, folder)
    tensors, record = weights.read(path)
    weights.load_tensors(model, llama.from_hugging_face(tensors, record, config.model), path)
    checksums.warn_of_changed_config(folder, record.get("files", {}))
    device = resolve_device(str(device))
    model = model.to(device)
    if is_ctranslate2 and device != "cpu":
        raise UserError(f"the engine ctranslate2 runs on a CPU, not on {device}")
    if bfloat16:
        check_bfloat16(model, int8)
        cast_parameters(model, torch.bfloat16)
    # The engine has its own int8: the model computes attention weights and likelihoods, in float32.
    in_int8 = int8 and not is_ctranslate2
    model = models.quantize_int8(model) if in_int8 else models.pack_weights(model)
    translator = Translator(config, tokenizers, model, read_card(folder))
    if is_ctranslate2:
        arguments = (config, tokenizers, model, folder, engine_folder, int8)
        translator.engine = load_engine(*arguments)
    return translator


def check_bfloat16(model: Model, int8: bool) -> None:
    device = next(model.parameters()).device
    if int8:
        raise UserError("choose either int8, for a CPU, or bfloat16, for a GPU")
    if device.type != "cuda":
        raise UserError(
            f"bfloat16 is for a GPU, and this model is on {device}: use the device cuda"
        )
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError("this GPU has no bfloat16: load the model without it")


def read_card(folder: Path) -> dict[str, Any] | None:
    """The result card of a run folder; None if it is missing or damaged, for no model depends on it."""
    try:
        return documents.read(folder / "card.json", schemas.Card)
    except UserError:
        return None


def read_configs(run: str | Path) -> list[Config]:
    """The resolved config of each member of an ensemble; of a single run, its own."""
    return [read_config(one) for one in shipped.split_runs(run)]


def read_config(run: str | Path) -> Config:
    """The resolved config of a run folder, a shipped model, or a run on the Hugging Face hub."""
    folder = hub.find_run(run)
    if not folder.is_dir():
        raise UserError(
            f"there is no run folder {run}: train one with `regard train case`, or use a shipped model "
            f"({join_names(shipped.names())}).{suggest(str(run), shipped.names())}"
        )
    path = folder / "config.toml"
    if not path.is_file():
        hint = ""
        if (folder / "config.json").is_file():
            table = f'model = {{kind = "pretrained", name = "{folder}"}}'
            hint = f"; it looks like a Hugging Face checkpoint: fine-tune it with {table}"
        elif str(run) in shipped.names():
            hint = "; it hides the shipped model of that name: rename it, or work in another folder"
        raise UserError(f"{folder} is not a run folder: it has no config.toml{hint}")
    return presets.locate_pairs(presets.validate(presets.read_file(path), str(path)), folder)
