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

from torch import nn

from regard.errors import UserError

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
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f'"{name}" cannot be loaded as a translation or language model: {first_line(error)}. '
            "One that needs code of its own is never loaded"
        ) from None
    if told["missing_keys"]:
        example = sorted(told["missing_keys"])[0]
        raise UserError(
            f'"{name}" is no whole language model: it lacks {len(told["missing_keys"])} weights '
            f"({example}, for example)"
        )
    # Theirs refuses for what was rounded once, though it is not any more.
    return nn.Module.float(model).eval(), fast(name, tokenizer)


def kind_for(config: Any) -> Any:
    """Which of their classes: an encoder with a decoder, or a decoder alone."""
    transformers = library()
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def place(name: str) -> tuple[str, dict[str, str]]:
    """(folder or name on the hub, options) to load from."""
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UserError(f"there is no file {path}: model.name should be a .gguf file that is")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"the folder {path} holds no Hugging Face model: it has no config.json")
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(
            f"there is no folder {path}: model.name is a folder, a .gguf file, or a name on the "
            "Hugging Face hub such as HuggingFaceTB/SmolLM2-135M-Instruct"
        )
    return name, {}


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
            "the spelling (a private one needs `hf auth login`)"
        )
    return (
        f'"{name}" is neither a folder here nor in the Hugging Face cache, and the hub cannot be reached '
        f"({first_line(error)}): get it where there is a network (`hf download {name} --local-dir DIR`) "
        "and set model.name=DIR"
    )


def fast(name: str, tokenizer: Any) -> Any:
    """The tokenizer, if it can be saved in one file and read without Hugging Face's code."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f'the tokenizer of "{name}" has no fast form (tokenizer.json), which a run keeps'
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f'the tokenizer of "{name}" has no end token: such a model never stops')
    return tokenizer


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
