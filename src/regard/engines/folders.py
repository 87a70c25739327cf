"""Folders of CTranslate2 models: written by `regard export`, or in the cache on first use."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from regard import checksums, documents, files, schemas
from regard.config import Config
from regard.engines import conversion
from regard.engines.conversion import Converter
from regard.engines.obstacles import check_expressible
from regard.errors import UserError
from regard.models.interface import Model
from regard.models.transformer_base import TransformerBase
from regard.text.datasets import cache_dir
from regard.text.tokenizer import TokenizerPair

RECORD = "regard.json"  # which weights a folder has
VMAP = "vmap.txt"  # CTranslate2's name for a shortlist
HASHED = ("config.toml", "tokenizer.json", "model.safetensors")


def check_convertible(settings: Config, tokenizers: TokenizerPair) -> None:
    """Raise an error if CTranslate2 is missing, or cannot express the model."""
    if find_spec("ctranslate2") is None:
        raise UserError('CTranslate2 is not installed: pip install "regard[ctranslate2]"')
    check_expressible(settings, tokenizers.joint)


def write_model(
    settings: Config,
    tokenizers: TokenizerPair,
    model: Model,
    out: Path,
    run: Path,
    int8: bool = False,
    vmap: str | None = None,
) -> None:
    """Write a run's model as a CTranslate2 folder, complete or not at all."""
    check_convertible(settings, tokenizers)
    assert isinstance(model, TransformerBase)
    spec = Converter(settings, tokenizers, model).convert()
    spec.validate()
    spec.optimize(quantization="int8" if int8 else None)

    def write_files(folder: Path) -> None:
        spec.save(str(folder))
        if vmap is not None:
            files.write(folder / VMAP, vmap)
        record = {"run": fingerprint(run), "files": hash_files(folder)}
        files.write(folder / RECORD, documents.dumps(record) + "\n")

    files.write_folder(out, write_files)


def fingerprint(run: Path) -> str:
    """A hash of a run folder's model, and of the code that converts it."""
    paths = [*(run / name for name in HASHED), Path(conversion.__file__)]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:32]


def find_model(
    settings: Config, tokenizers: TokenizerPair, model: Model, run: Path, folder: Path | None
) -> Path:
    """The CTranslate2 folder of a run: the one given, or one in the cache, written on first use."""
    check_convertible(settings, tokenizers)
    if folder is not None:
        check_folder(folder, run)
        return folder
    cached = cache_dir() / "ctranslate2" / fingerprint(run)
    files.remove_temporary(cached.parent)
    if not is_intact(cached, run):
        if cached.is_dir():
            files.remove(cached)
        try:
            write_model(settings, tokenizers, model, cached, run)
        except UserError:
            if not is_intact(cached, run):  # else another process wrote it meanwhile
                raise
    return cached


def hash_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file but the record."""
    paths = [path for path in files.list_files(folder) if path.is_file() and path.name != RECORD]
    return {path.name: checksums.hash_file(path) for path in sorted(paths)}


def is_intact(folder: Path, run: Path) -> bool:
    try:
        check_folder(folder, run)
    except UserError:
        return False
    return True


def check_folder(folder: Path, run: Path) -> None:
    """Raise an error unless the folder was exported from this run, as it is now."""
    try:
        record = documents.read(folder / RECORD, schemas.ExportRecord)
    except UserError:
        raise UserError(
            f"{folder} is not a folder that `regard export --to ctranslate2` wrote"
        ) from None
    if not record["files"].items() <= hash_files(folder).items():
        raise UserError(
            f"{folder} is damaged: its files have changed since they were exported. Export it again, with "
            f"`regard export {run} --to ctranslate2 --out FOLDER`"
        )
    if record["run"] != fingerprint(run):
        raise UserError(
            f"{folder} was exported from another run, or by another version of regard: export it again, "
            f"with `regard export {run} --to ctranslate2 --out FOLDER`"
        )
