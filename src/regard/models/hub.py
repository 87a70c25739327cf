"""Checkpoints from a folder, from the Hugging Face hub, or from a GGUF file.

No code of theirs is ever run, and no pickle is ever loaded: safetensors, or GGUF.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import UserError, suggest

EXTRA = 'model.kind = "pretrained" needs more packages: pip install "regard[pretrained]"'


def library() -> Any:
    """Hugging Face's transformers: slow to import, and not everyone has it."""
    try:
        import transformers
    except ImportError:
        raise UserError(EXTRA) from None
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Without their progress bars, notes and warnings; what matters is told by us."""
    talkers = [logging.getLogger(name) for name in ("huggingface_hub", "transformers")]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)


def fetch(name: str) -> tuple[Any, Any]:
    """(model in float32, tokenizer) of a checkpoint, as Hugging Face has them."""
    transformers = library()
    where, options = place(name)
    safe = {**options, "trust_remote_code": False}
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(where, **safe)
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **safe)
            weights = safe if options else {**safe, "use_safetensors": True}
            model, told = kind_for(config).from_pretrained(
                where, config=config, output_loading_info=True, **weights
            )
    except ImportError as error:
        raise UserError(f"{EXTRA} ({first_line(error)})") from None
    except OSError as error:
        raise UserError(unreachable(name, error)) from None
    except Exception as error:  # a damaged file may lead their code to any
        raise UserError(unloadable(name, error)) from None
    if told["missing_keys"]:
        example = sorted(told["missing_keys"])[0]
        raise UserError(
            f'"{name}" is no whole language model: it lacks {len(told["missing_keys"])} weights '
            f"({example}, for example)"
        )
    # Theirs refuses for what was rounded once, though it is not any more.
    model = nn.Module.float(model).eval()
    if not config.is_encoder_decoder and looks_ahead(model):
        raise UserError(
            f'"{name}" is a {config.model_type} model, which reads a text from both sides and writes '
            "none: choose one that writes, such as GPT-2, LLaMA, T5 or BART"
        )
    return model, fast(name, tokenizer)


def kind_for(config: Any) -> Any:
    """Which of their classes: an encoder with a decoder, or a decoder alone."""
    transformers = library()
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


@torch.no_grad()
def looks_ahead(model: Any) -> bool:
    """Does what is said of a token depend on the next one? Nobody could write so."""
    one, other = model(input_ids=torch.tensor([[1, 2], [1, 3]])).logits[:, 0]
    return bool((one - other).abs().max() > 1e-4 * one.abs().max())


def place(name: str) -> tuple[str, dict[str, str]]:
    """(folder or name on the hub, options) to load from."""
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UserError(f"model.name: there is no file {path.absolute()}.{similar(name)}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_file():
        raise UserError(
            f"{path} is a file: model.name is the folder with all of a checkpoint's files "
            f"({path.parent}?), or a .gguf file"
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"the folder {path} holds no Hugging Face model: it has no config.json")
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(
            f"there is no folder {path}.{similar(name)} model.name is a folder, a .gguf file, or a "
            "name on the Hugging Face hub such as HuggingFaceTB/SmolLM2-135M-Instruct"
        )
    return name, {}


def similar(name: str) -> str:
    """' Did you mean "x"?' of what lies in the same folder, or in Hugging Face's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(name).expanduser().parent
    found = folder.iterdir() if folder.is_dir() else ()
    beside = [path.name for path in found if path.is_dir() or path.suffix == ".gguf"]
    kept = [path.name.split("--", 1)[1] for path in Path(HF_HUB_CACHE).glob("models--*")]
    return suggest(Path(name).name, beside) or suggest(name, [n.replace("--", "/") for n in kept])


def unloadable(name: str, error: Exception) -> str:
    """What is wrong with a checkpoint that is there, as far as one can tell."""
    if "backend tokenizer" in str(error):
        return without_tokenizer(name)
    why = f"{first_line(error)}. "
    if name.endswith(".gguf"):
        return (
            f'"{name}" cannot be loaded: {why}Either the file is cut off or damaged (get it again), or '
            "transformers reads no such model from GGUF"
        )
    return (
        f'"{name}" cannot be loaded as a translation or language model: {why}Either its files are '
        "damaged (get them again), or it needs code of its own, which is never run"
    )


def unreachable(name: str, error: OSError) -> str:
    """Why a checkpoint could not be had, and what to do."""
    text = str(error)
    if "safetensors" in text or "pytorch_model" in text:
        return (
            f'"{name}" has no weights in safetensors, and regard loads no other kind (a pickle can run '
            "code): choose another, or convert it with transformers' save_pretrained"
        )
    if Path(name).expanduser().is_dir():
        return f'the folder "{name}" cannot be loaded: {first_line(error)}'
    if "not a valid model identifier" in text or "404" in text:
        return (
            f'the Hugging Face hub has no model "{name}", nor is there a folder of that name: check '
            f"the spelling (a private one needs `hf auth login`).{similar(name)}"
        )
    return (
        f'"{name}" is neither a folder here nor in the Hugging Face cache.{similar(name)} And the hub '
        f"cannot be reached ({first_line(error)}): check the spelling, or get it where there is a "
        f"network (`hf download {name} --local-dir DIR`) and set model.name=DIR"
    )


def fast(name: str, tokenizer: Any) -> Any:
    """The tokenizer, if it can be saved in one file and read without Hugging Face's code."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f'the tokenizer of "{name}" has no fast form (tokenizer.json), which a run keeps'
        )
    # Where there is no file, they make one up that knows its special tokens, and a space perhaps.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab())) < 2:
        raise UserError(without_tokenizer(name))
    if tokenizer.eos_token_id is None:
        raise UserError(f'the tokenizer of "{name}" has no end token: such a model never stops')
    return tokenizer


def without_tokenizer(name: str) -> str:
    return f'"{name}" comes without its tokenizer: put its tokenizer.json into the same folder'


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".!")
