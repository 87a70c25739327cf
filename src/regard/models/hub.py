"""Load checkpoints from a folder, from the Hugging Face hub, or from a GGUF file.

No code from a checkpoint is ever run, and no pickle is ever loaded: only safetensors and GGUF.
"""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import documents, files
from regard.errors import UserError, is_rust_error, suggest
from regard.models.gguf_header import check_header

INDEX = ".index.json"
MAX_ID = 2**24  # of a token
LAYERS = re.compile(r"layers?$")  # of keys: num_hidden_layers, n_layer
MAX_LAYERS = 1000
EXTRA = 'model.kind = "pretrained" needs more packages: pip install "regard[pretrained]"'


def import_transformers() -> Any:
    """Hugging Face's transformers: an optional dependency, and slow to import."""
    try:
        import transformers
    except ImportError:
        raise UserError(EXTRA) from None
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Hugging Face's progress bars, log messages and warnings; we report what matters."""
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def load_checkpoint(name: str) -> tuple[Any, Any]:
    """(model in float32, tokenizer) of a checkpoint, as Hugging Face objects."""
    transformers = import_transformers()
    path, options = locate(name)
    safe = {**options, "trust_remote_code": False}
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(path, **safe)
            check_files(name, path)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, **safe)
            weights = safe if options else {**safe, "use_safetensors": True}
            model, loading_info = auto_class(config).from_pretrained(
                path, config=config, output_loading_info=True, **weights
            )
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"{EXTRA} ({first_line(error)})") from None
    except OSError as error:
        raise UserError(explain_missing(name, error)) from None
    except BaseException as error:  # a damaged file can raise any exception
        if not is_rust_error(error):
            raise
        raise UserError(explain_unloadable(name, error)) from None
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise UserError(
            f'"{name}" is not a complete language model: it lacks {len(missing)} weights (for example '
            f"{missing[0]})"
        )
    check_finite(name, model)
    # Not model.float(), which raises for a checkpoint that was quantized, though it no longer is.
    model = nn.Module.float(model).eval()
    if not config.is_encoder_decoder and not is_causal(model):
        raise UserError(
            f'"{name}" is a {config.model_type} model: its attention is bidirectional, so it cannot '
            "generate text. Choose a generative one, such as GPT-2, LLaMA, T5 or BART"
        )
    return model, check_tokenizer(name, tokenizer)


def check_finite(name: str, model: Any) -> None:
    """Raise an error for NaN or infinity in the weights: a checkpoint has no checksum to compare with."""
    for parameter_name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UserError(
                f'"{name}" has NaN or infinity in {parameter_name}: its files are damaged (download them '
                "again)"
            )


def check_files(name: str, path: str) -> None:
    """Raise an error if Hugging Face would load a pickle, or code, that the checkpoint names.

    `use_safetensors` and `trust_remote_code` do not prevent that: config.json and an index of shards may
    name a pickle, and the weights of an adapter may be one.
    """
    config = read_json(path, "config.json")
    check_config(name, config)
    if read_json(path, "adapter_config.json"):
        raise UserError(
            f'"{name}" has a PEFT adapter, which regard does not load: merge it into the model with '
            "merge_and_unload, then save_pretrained, or delete adapter_config.json"
        )
    check_ids(name, read_json(path, "tokenizer.json"))
    weights = str(config.get("transformers_weights") or "model.safetensors")
    shards = [
        str(shard)
        for index in {f"model.safetensors{INDEX}", weights}
        if index.endswith(INDEX)
        for shard in read_json(path, index).get("weight_map", {}).values()
    ]
    for file in (weights.removesuffix(INDEX), *shards):
        is_inside = not Path(file).is_absolute() and ".." not in Path(file).parts
        if not file.endswith(".safetensors") or not is_inside:
            raise UserError(
                f'"{name}" names {file} as a file of weights: regard loads only .safetensors files in '
                "the checkpoint's folder (a pickle can run code). Convert it with save_pretrained"
            )


def check_ids(name: str, tokenizer: dict[str, Any]) -> None:
    """Raise an error for an id in tokenizer.json so large that `tokenizers` aborts for lack of memory."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in added or [] if isinstance(token, dict)]
    largest = max((index for index in ids if isinstance(index, int)), default=0)
    if largest > MAX_ID:
        raise UserError(
            f'the tokenizer.json of "{name}" has a token with the id {largest:,}, too large for any '
            "vocabulary: it is damaged. Download it again"
        )


def check_config(name: str, config: dict[Any, Any]) -> None:
    """Raise an error if a Hugging Face config names a repository with code, such as a kernel, or has more
    layers than any model.
    """
    for key, value in config.items():
        if isinstance(value, dict):
            check_config(name, value)
        if LAYERS.search(str(key)) and isinstance(value, int) and value > MAX_LAYERS:
            raise UserError(f'"{name}" is damaged: it has {value:,} layers ({key})')
        if str(key).endswith("_implementation") and "/" in str(value):
            raise UserError(f'"{name}" needs code of {value} ({key}), which regard never runs')


def read_json(path: str, file: str) -> dict[str, Any]:
    """A JSON file of a checkpoint (a folder or a name on the hub); empty if it has no such file."""
    if Path(path).is_dir():
        found = Path(path) / file
        return documents.read(found) if found.is_file() else {}
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return documents.read(Path(hf_hub_download(path, file)))
    except EntryNotFoundError:
        return {}


def auto_class(config: Any) -> Any:
    """Hugging Face's auto class for an encoder-decoder or a decoder-only model."""
    transformers = import_transformers()
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


@torch.no_grad()
def is_causal(model: Any) -> bool:
    """Whether the logits at a token are independent of the next token."""
    one, other = model(input_ids=torch.tensor([[1, 2], [1, 3]])).logits[:, 0]
    return not bool((one - other).abs().max() > 1e-4 * one.abs().max())


def locate(name: str) -> tuple[str, dict[str, str]]:
    """(folder or name on the hub, options) for `from_pretrained`."""
    path = files.local_path(Path(name).expanduser())
    if name.endswith(".gguf"):
        if not path.is_file():
            raise UserError(f"model.name: there is no file {path.absolute()}.{suggest_name(name)}")
        check_header(path)
        return str(path.parent), {"gguf_file": path.name}
    if path.is_file():
        raise UserError(
            f"{path} is a file: model.name is the folder with all files of a checkpoint "
            f"({path.parent}?), or a .gguf file"
        )
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"the folder {path} is not a Hugging Face checkpoint: it has no config.json"
            )
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(
            f"there is no folder {path}.{suggest_name(name)} model.name is a folder, a .gguf file, or a "
            "name on the Hugging Face hub such as HuggingFaceTB/SmolLM2-135M-Instruct"
        )
    return name, {}


def suggest_name(name: str) -> str:
    """' Did you mean "x"?' with a checkpoint from the same folder, or from Hugging Face's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(name).expanduser().parent
    paths = folder.iterdir() if folder.is_dir() else ()
    local = [path.name for path in paths if path.is_dir() or path.suffix == ".gguf"]
    cached = [path.name.split("--", 1)[1] for path in Path(HF_HUB_CACHE).glob("models--*")]
    return suggest(Path(name).name, local) or suggest(name, [n.replace("--", "/") for n in cached])


def explain_unloadable(name: str, error: BaseException) -> str:
    """The error message for a checkpoint that is there but cannot be loaded."""
    if "backend tokenizer" in str(error):
        return missing_tokenizer(name)
    reason = f"{first_line(error)}. "
    if name.endswith(".gguf"):
        return (
            f'"{name}" cannot be loaded: {reason}Either the file is truncated or damaged (download it '
            "again), or transformers does not support this architecture in GGUF"
        )
    return (
        f'"{name}" cannot be loaded as a translation or language model: {reason}Either its files are '
        "damaged (download them again), or it needs custom code, which regard never runs"
    )


def explain_missing(name: str, error: OSError) -> str:
    """The error message for a checkpoint that was not found or cannot be read."""
    text = str(error)
    if "safetensors" in text or "pytorch_model" in text:
        return (
            f'"{name}" has no weights in safetensors, the only format regard loads (a pickle can run '
            "code): choose another checkpoint, or convert it with transformers' save_pretrained"
        )
    if Path(name).expanduser().is_dir():
        return f'the folder "{name}" cannot be loaded: {first_line(error)}'
    if "not a valid model identifier" in text or "404" in text:
        return (
            f'the Hugging Face hub has no model "{name}", and there is no such folder: check the '
            f"spelling (a private model needs `hf auth login`).{suggest_name(name)}"
        )
    return (
        f'"{name}" is neither a folder nor in the Hugging Face cache.{suggest_name(name)} And the hub '
        f"cannot be reached ({first_line(error)}): check the spelling, or download the model on a machine "
        f"with a network (`hf download {name} --local-dir DIR`) and set model.name=DIR"
    )


def check_tokenizer(name: str, tokenizer: Any) -> Any:
    """The tokenizer, if a single file can hold it and `tokenizers` alone can load it."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f'the tokenizer of "{name}" has no fast version (tokenizer.json), which regard needs'
        )
    # Without a tokenizer file, transformers builds one that knows only its special tokens and a space.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab())) < 2:
        raise UserError(missing_tokenizer(name))
    if tokenizer.eos_token_id is None:
        raise UserError(
            f'the tokenizer of "{name}" has no end-of-sequence token: generation would never stop'
        )
    return tokenizer


def missing_tokenizer(name: str) -> str:
    return f'"{name}" has no tokenizer: put its tokenizer.json into the same folder'


def first_line(error: BaseException) -> str:
    line = str(error).strip().split("\n")[0].rstrip(".!")
    return line.encode("utf-8", "backslashreplace").decode()  # it may quote half a character
