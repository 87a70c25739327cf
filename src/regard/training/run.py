"""A run folder from beginning to end: data, tokenizer, model, loop, examples, result card."""

import json
import platform
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console

import regard
from regard import files
from regard.config import Config
from regard.diagrams import draw
from regard.errors import UserError
from regard.models import build
from regard.text import cache, corpus
from regard.text.batch import Batches, Encoded
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair
from regard.training import checkpoint
from regard.training.loop import Loop
from regard.training.progress import Display
from regard.translator import Translator, load, read_config

EXAMPLES = 3


def train(
    config: Config, folder: Path, device: str, resume: bool, console: Console
) -> dict[str, Any]:
    """Train in `folder`; the result card. A finished run that is resumed stays as it is."""
    check(config, folder, resume)
    files.sweep(folder)
    data = corpus.load(config.data)
    for line in data.told:
        console.print(line, highlight=False)
    if not (folder / "config.toml").is_file():
        files.write(folder / "config.toml", config.to_toml())
    tokenizers = tokenizers_of(config, data, folder)
    torch.manual_seed(config.seed)
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # tf32: the loss cannot tell, the clock can
    sizes = (tokenizers.source.size, tokenizers.target.size)
    model = build(config.model, *sizes, tokenizers.joint).to(device)
    table = config.training
    train, val = (fitting(data[split], tokenizers, split, console) for split in ("train", "val"))
    console.print(
        f"{len(train):,} pairs, vocabulary {sizes[0]:,} and {sizes[1]:,}, "
        f"{model.parameter_count:,} parameters, {device}",
        highlight=False,
    )
    batches = Batches(train, table.batch_tokens, table.batch_sentences, config.seed)
    with Display(console) as display:
        loop = Loop(table, model, batches, val, folder, display)
        if resume and (folder / checkpoint.FILE).is_file():
            loop.restore()
            display.say(f"resuming at step {loop.progress.step}")
        else:
            (folder / "metrics.jsonl").unlink(missing_ok=True)
            loop.log(event="start", seed=config.seed, parameters=model.parameter_count)
        progress = loop.run()
    figures = {
        "parameters": model.parameter_count,
        "val_loss": progress.best,
        "best_step": progress.best_step,
        "steps": progress.step,
        "training_seconds": progress.seconds,
        "tokens_per_second": progress.tokens / progress.seconds,
    }
    card = {
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "versions": versions(),
        "device": device_name(device),
        "data": data.checksums(),
        "figures": figures,
    }
    write_card(folder, card)
    draw_examples(load(folder, device), data, folder / "examples")
    return card


def check(config: Config, folder: Path, resume: bool) -> None:
    """Whether a run can begin in this folder, or go on in it."""
    if resume and (folder / "config.toml").is_file():
        saved = read_config(folder)
        if saved != config:
            changed = differences(saved.model_dump(), config.model_dump())
            raise UserError(
                f"{folder} was trained with other settings ({', '.join(changed)}): a resumed run "
                "keeps its settings; choose another --run for new ones"
            )
        return
    if folder.exists() and (not folder.is_dir() or files.listed(folder)):
        resumable = (folder / "config.toml").is_file()
        way = "continue it with --resume, or " if resumable else "it is no run folder, so "
        raise UserError(f"{folder} is there already: {way}choose another --run")


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Dotted names of what differs, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        inner = (differences(old.get(k), new.get(k), f"{path}.{k}".lstrip(".")) for k in keys)
        return [line for lines in inner for line in lines]
    return [] if old == new else [f"{path}: {old} there, {new} here"]


def tokenizers_of(config: Config, data: Corpus, folder: Path) -> TokenizerPair:
    """Those in the folder, or new ones learned from the training text."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        TokenizerPair.learn(config.tokenizer, data["train"], data.symbols).save(path)
    return TokenizerPair.load(path)


def fitting(
    pairs: list[tuple[str, str]], tokenizers: TokenizerPair, split: str, console: Console
) -> Encoded:
    """The pairs as ids, without those that are longer than the tokenizer's limit."""
    encoded = cache.encoded(pairs, tokenizers)
    limit = tokenizers.max_tokens
    lengths = enumerate(encoded.lengths())
    keep = [row for row, (target, source) in lengths if source <= limit + 1 and target <= limit]
    if not keep:
        raise UserError(f"every pair of the {split} split is longer than {limit} tokens")
    if len(keep) == len(encoded):
        return encoded
    skipped = len(encoded) - len(keep)
    console.print(f"{split}: {skipped:,} pairs over {limit} tokens left out", highlight=False)
    return Encoded([encoded.source[r] for r in keep], [encoded.target[r] for r in keep])


def draw_examples(translator: Translator, data: Corpus, folder: Path) -> None:
    """Attention pictures of the first validation sentences, where the model has cross-attention."""
    texts = [source for source, _ in data["val"][:EXAMPLES]]
    for number, output in enumerate(translator.translate(texts), start=1):
        if "cross" in output.attention:
            path = folder / f"{number}.png"
            draw(path, output.attention["cross"], output.source, output.target)


def write_card(folder: Path, card: dict[str, Any]) -> None:
    files.write(folder / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    return {
        "regard": regard.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
