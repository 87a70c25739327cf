"""A run as a folder for the Hugging Face hub: weights, config, tokenizer and a model card.

The folder is still a run folder, which every command takes. A model of LLaMA's form is stored as Hugging Face
stores it, so that `AutoModelForCausalLM` loads it too.
"""

import shutil
from pathlib import Path
from typing import Any

from regard import __version__, documents, files
from regard.config import Config
from regard.export.card import write_card
from regard.export.scores import Evaluation, find_scores
from regard.loading import load
from regard.models import llama, weights
from regard.text.hub import RUN_FILES, find_run
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import BOS, EOS, PAD, UNK
from regard.translator import Translator

WEIGHTS = "model.safetensors"


def export_hub(run: Path, out: Path, evaluation: Evaluation) -> dict[str, Any]:
    """Write the folder; the record says which files, which scores, and why the form is not LLaMA's, if so."""
    translator = load(run)
    folder = find_run(run)
    difference = llama.find_difference(translator.config, translator.tokenizers)
    scores, no_scores = find_scores(translator, folder, evaluation)
    name = out.resolve().name

    def write_files(new: Path) -> None:
        copy_run(folder, new)
        if difference is None:
            write_llama_weights(folder / WEIGHTS, new / WEIGHTS, translator.config)
        files.write(new / "config.json", format_json(build_config(translator, difference)))
        write_card(new / "README.md", translator, name, scores, no_scores, difference)

    files.write_folder(out, write_files)
    return {
        "files": sorted(path.name for path in files.list_files(out)),
        "parameters": translator.model.parameter_count,
        "transformers": difference is None,
        "why_not_transformers": difference,
        "scores": None if scores is None else scores.to_dict(),
        "why_no_scores": no_scores or None,
    }


def copy_run(folder: Path, out: Path) -> None:
    """Copy the files that make a run folder, and nothing that only training needs."""
    for name in RUN_FILES:
        path = folder / name
        if path.is_file():
            files.write_with(out / name, lambda copy, path=path: shutil.copyfile(path, copy))


def write_llama_weights(path: Path, out: Path, config: Config) -> None:
    """Rewrite a file of weights in Hugging Face's layout."""
    tensors, record = weights.read(path)
    tensors = llama.from_hugging_face(
        tensors, record, config.model
    )  # an exported run, exported again
    tensors = llama.to_hugging_face(tensors, config.model)
    weights.save(out, tensors, record | llama.LAYOUT, format="pt")


def build_config(translator: Translator, difference: str | None) -> dict[str, Any]:
    """config.json: Hugging Face's own for a model of LLaMA's form, else what a reader needs to know."""
    config, tokenizers = translator.config, translator.tokenizers
    common = {"library": "regard", "regard_version": __version__}
    if difference is None:
        return llama.hugging_face_config(config.model, tokenizers) | common
    table = config.model_dump(mode="json", exclude_none=True)
    return {
        "model_type": "regard",
        **common,
        **describe_vocabulary(tokenizers),
        "model": table["model"],
        "tokenizer": table["tokenizer"],
        "search": table["search"],
    }


def describe_vocabulary(tokenizers: TokenizerPair) -> dict[str, Any]:
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}
    return {
        "source_vocab_size": tokenizers.source.vocab_size,
        "vocab_size": tokenizers.target.vocab_size,
        "joint_vocabulary": tokenizers.joint,
        **{f"{name}_token_id": token_id for name, token_id in ids.items()},
    }


def format_json(record: dict[str, Any]) -> str:
    return documents.dumps(record, indent=2, ensure_ascii=False) + "\n"
