"""Small valid folders, one of each kind that Regard reads; each is written once, in under a second."""

import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard import config
from regard.api import Translator
from regard.augment import Augmenter, write_pairs
from regard.compare.job import run_job
from regard.compare.plan import plan
from regard.compare.report import write_report
from regard.config import Config, Recipe
from regard.evaluation import evaluate
from regard.export import export
from regard.loading import load
from regard.models import build, load_pretrained
from regard.models.int8_probe import KERNELS
from regard.text import cache, corpus
from regard.text.decompress import import_zstd
from regard.text.shard_writer import write_shards
from regard.text.stream import open_stream
from regard.text.tokenizer import TokenizerPair
from regard.training import train
from tests.checkpoints import TEXT, save_checkpoint, write_gguf

PAIRS = [(text, " ".join(reversed(text.split()))) for text in dict.fromkeys(TEXT)] * 4
TEXTS = [PAIRS[0][0], PAIRS[1][0]]
TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
RECURRENT = {"kind": "recurrent", "embedding_dim": 5, "hidden_dim": 7}
TRANSFORMER = {"kind": "transformer", "d_model": 6, "d_ff": 11, "attention": {"heads": 2}}
# In LLaMA's form, so that it is exported in Hugging Face's layout.
LLAMA = {
    "kind": "decoder-only",
    "d_model": 8,
    "d_ff": 11,
    "norm": "rms",
    "norm_position": "pre",
    "activation": "swiglu",
    "position": "rotary",
    "tie_embeddings": True,
    "attention": {"heads": 2},
}
TRAINING = {"epochs": 3, "batch_sentences": 4, "validate_every": 3, "warmup_steps": 2}
SHORT = {"max_ratio": 0.0, "max_extra": 5}  # outputs
BPE = {"kind": "bpe", "vocab_size": 300, "joint": True}


def make_config(folder: Path, model: dict[str, Any], tokenizer: dict[str, Any]) -> Config:
    """Settings of a run on a file beside `folder`."""
    path = folder.parent / "pairs.tsv"
    path.write_bytes(TSV)
    data = {"kind": "files", **dict.fromkeys(("train", "val", "test"), str(path.resolve()))}
    tables = {"data": data, "tokenizer": tokenizer, "model": model, "training": TRAINING}
    return Config.model_validate(tables | {"search": SHORT})


def save_run(folder: Path, model: dict[str, Any], tokenizer: dict[str, Any], int8: bool = False):
    """A run with random weights, as `Translator.save` writes it."""
    from regard.models import weights

    settings = make_config(folder, model, tokenizer)
    tokenizers = TokenizerPair.train(settings.tokenizer, PAIRS, ())  # type: ignore[arg-type]
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    torch.manual_seed(3)
    built = build(settings.model, *sizes, tokenizers.joint, folder)
    Translator(settings, tokenizers, built).save(folder)
    if int8:
        path = folder / "model.safetensors"
        weights.save(path, weights.state_tensors(built), weights.read(path)[1], int8=True)


def train_run(folder: Path, stop_at: int | None = None, average: int | None = None) -> None:
    """A run, finished and evaluated, or interrupted at a step."""

    def interrupt(event: dict[str, Any]) -> None:
        if stop_at and event.get("step") == stop_at:
            raise KeyboardInterrupt

    settings = make_config(folder, RECURRENT, {"kind": "words"})
    training = settings.training.model_copy(update={"average_checkpoints": average})
    settings = settings.model_copy(update={"training": training})
    options = {"resume": False, "console": Console(file=io.StringIO()), "callbacks": (interrupt,)}
    try:
        train(settings, folder, "cpu", **options)
    except KeyboardInterrupt:
        return
    pairs = corpus.load_split(settings.data, "test")
    evaluation = {"split": "test", **evaluate(load(folder), pairs, [1])}
    (folder / "evaluation-test.json").write_text(json.dumps(evaluation), "utf-8")


def save_pretrained_run(folder: Path) -> None:
    checkpoint = folder.parent / "checkpoint"
    save_checkpoint("llama", checkpoint)
    data = {"kind": "files", "train": "train.tsv", "val": "val.tsv"}
    model = {"kind": "pretrained", "name": str(checkpoint)}
    settings = Config.model_validate(
        {"data": data, "model": model, "tokenizer": {"kind": "pretrained"}, "search": SHORT}
    )
    loaded = load_pretrained(settings.model, settings.tokenizer)  # type: ignore[arg-type]
    Translator(settings, loaded.tokenizers, loaded.model).save(folder)


def save_gguf(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = folder.parent / "to-gguf"  # elsewhere: a GGUF file has its own tokenizer
    save_checkpoint("llama", checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    write_gguf(folder / "tiny.gguf", model, AutoTokenizer.from_pretrained(checkpoint))


def save_comparison(folder: Path) -> None:
    """The runs of two seeds, trained and evaluated, in folder/out; folder/p.toml is the preset."""
    path = folder / "pairs.tsv"
    path.write_bytes(TSV)
    data = ", ".join(f'{split} = "{path.resolve()}"' for split in ("train", "val", "test"))
    training = ", ".join(f"{key} = {value}" for key, value in TRAINING.items())
    preset = f'data = {{kind = "files", {data}}}\ntokenizer = "words"\ntraining = {{{training}}}\n'
    (folder / "p.toml").write_text(
        preset + "model = {hidden_dim = 7, embedding_dim = 5}\nsearch.max_ratio = 0\n"
    )
    runs = plan([str(folder / "p.toml")], [], [], [2], folder / "out" / "runs")
    for run in runs:
        toml = run.folder.with_suffix(".toml")
        toml.parent.mkdir(parents=True, exist_ok=True)
        toml.write_text(run.config.to_toml())
        run_job(toml, run.folder, "cpu", 1, "test", [1])
    write_report(runs, "test", "regard compare", [], folder / "out")


def save_export(folder: Path, to: str, model: dict[str, Any], **options: Any) -> None:
    save_run(folder / "run", model, BPE)
    export(folder / "run", to, folder / "out", **options)


def save_token_cache(folder: Path) -> None:
    os.environ["REGARD_CACHE"] = str(folder)
    tokenizers = TokenizerPair.train(config.Words(), PAIRS, ())
    tokenizers.save(folder / "tokenizer.json")
    cache.encode_cached(PAIRS, tokenizers)


def files_on_disk(folder: Path) -> config.FileData:
    return config.FileData(train=str(folder / "t.tsv"), val=str(folder / "t.tsv"), storage="disk")


def save_shards(folder: Path) -> None:
    os.environ["REGARD_CACHE"] = str(folder)
    (folder / "t.tsv").write_bytes(TSV)
    tokenizers = TokenizerPair.train(config.Words(), PAIRS, ())
    tokenizers.save(folder / "tokenizer.json")
    write_shards(open_stream(files_on_disk(folder)), tokenizers)


def save_texts(folder: Path) -> None:
    """The user's own files in every form, and a public corpus as a zip."""
    rows = [{"source": source, "target": target} for source, target in PAIRS]
    (folder / "t.tsv").write_bytes(TSV)
    (folder / "t.tsv.gz").write_bytes(gzip.compress(TSV, mtime=0))
    (folder / "t.tsv.zst").write_bytes(import_zstd("t.tsv.zst").compress(TSV))
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "t.source").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (folder / "t.target").write_text("".join(f"{target}\n" for _, target in PAIRS))
    (folder / "mine.toml").write_text(
        'description = "mine"\nbase = "case"\nseed = 3\n[data]\nkind = "files"\ntrain = "t.tsv"\n'
        'val = ["t.source", "t.target"]\nmax_characters = 300\n[model]\nkind = "transformer"\nd_model = 8\n'
        'd_ff = 16\nposition = "rotary"\n[model.attention]\nheads = 2\n[tokenizer]\nkind = "bpe"\n'
        "vocab_size = 400\n[training]\nepochs = 1.5\nlearning_rate = 1e-3\n[search]\nmax_extra = 5\n"
    )
    (folder / "hf").mkdir()
    for split in ("train", "validation"):
        (folder / "hf" / f"{split}.jsonl").write_bytes((folder / "t.jsonl").read_bytes())
    (folder / "tatoeba").mkdir()
    with zipfile.ZipFile(folder / "tatoeba" / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", TSV)


def save_records(folder: Path) -> None:
    """What the cache remembers: the speed of int8 kernels, and the files of a repository."""
    ratios = {"this machine": dict.fromkeys(KERNELS, 1.5)}
    (folder / "int8.json").write_text(json.dumps(ratios))
    siblings = [{"rfilename": "a.json", "size": 3, "blobId": "0" * 40}]
    siblings += [{"rfilename": "b", "blobId": "1" * 40, "lfs": {"sha256": "0" * 64, "size": 9}}]
    (folder / "listing.json").write_text(json.dumps({"sha": "a" * 40, "siblings": siblings}))


def save_pairs(folder: Path) -> None:
    """A run, and synthetic pairs of it: whole with their card, and half, with how far they are."""
    save_run(folder / "run", RECURRENT, {"kind": "characters"})
    augmenter = Augmenter(load(folder / "run"), Recipe(max_ratio=1e6))
    augmenter.check_output = lambda *_: None  # a random model hardly ever ends its output
    out = folder / "pairs.jsonl"
    write_pairs(augmenter, [source for source, _ in PAIRS], out, {"run": "run"})
    lines = out.read_bytes()
    half = {"lines": 2, "bytes": len(lines), "seconds": 0.5, "counts": {"texts": 2, "pairs": 2}}
    origin = {"run": "run", "recipe": augmenter.recipe.model_dump(mode="json")}
    (folder / "half.jsonl.part").write_bytes(lines)
    (folder / "half.jsonl.progress.json").write_text(json.dumps(half | {"origin": origin}))


def in_run(save: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: save(folder / "run", *arguments, **options)


SAMPLES: dict[str, Callable[[Path], Any]] = {
    "characters": in_run(save_run, RECURRENT, {"kind": "characters"}),
    "words": in_run(save_run, TRANSFORMER, {"kind": "words"}),
    "bpe": in_run(save_run, TRANSFORMER, BPE),
    "int8": in_run(save_run, TRANSFORMER, BPE, int8=True),
    "trained": in_run(train_run),
    "interrupted": in_run(train_run, stop_at=6),
    "interrupted-average": in_run(train_run, stop_at=6, average=3),
    "pretrained": in_run(save_pretrained_run),
    "checkpoint": lambda folder: save_checkpoint("llama", folder),
    "gguf": save_gguf,
    "comparison": save_comparison,
    "hub": lambda folder: save_export(folder, "hub", LLAMA),
    "ctranslate2": lambda folder: save_export(folder, "ctranslate2", TRANSFORMER, shortlist=3),
    "tokens": save_token_cache,
    "shards": save_shards,
    "texts": save_texts,
    "records": save_records,
    "pairs": save_pairs,
}
