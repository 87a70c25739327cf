"""A run folder from beginning to end: data, tokenizer, model, loop, examples, result card."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import files
from regard.config import Config
from regard.diagrams import draw
from regard.errors import UserError
from regard.evaluation import greedy_bleu
from regard.models import Model, PretrainedCheckpoint, build, load_pretrained
from regard.text import cache, corpus
from regard.text.batch import BatchSampler, DeviceDataset, EncodedPairs
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair
from regard.training import checkpoint
from regard.training.card import card_of, surroundings, write_card
from regard.training.differences import changes
from regard.training.inherit import Ancestor
from regard.training.loop import Loop
from regard.training.progress import Display
from regard.training.update import Update, memory_is_full
from regard.translator import Translator, load, read_config

EXAMPLES = 3
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def train(
    config: Config, folder: Path, device: str, resume: bool, console: Console, jobs: int = 1
) -> dict[str, Any]:
    """Train in `folder`; the result card. A finished run that is resumed stays as it is.

    `jobs`: how many such runs share the device, for the card.
    """
    check(config, folder, resume)
    with begun(folder), enough_memory(config.training.batch_tokens):
        return trained(config, folder, device, resume, console, jobs)


@contextmanager
def begun(folder: Path) -> Iterator[None]:
    """A folder that is new goes again if a mistake is found before training begins in it."""
    new = not folder.exists()
    try:
        yield
    except UserError:
        if new and not (folder / "metrics.jsonl").is_file():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def enough_memory(batch_tokens: int) -> Iterator[None]:
    """What to do where the memory is full, instead of how PyTorch came to know."""
    try:
        yield
    except RuntimeError as error:
        if not memory_is_full(error):
            raise
        raise UserError(
            f"the memory is full: lower training.batch_tokens (now {batch_tokens:,}) or choose a "
            "smaller model, and see who else uses the device"
        ) from None


def trained(
    config: Config, folder: Path, device: str, resume: bool, console: Console, jobs: int
) -> dict[str, Any]:
    """The same, in a folder that may be used."""
    files.remove_temporary(folder)
    resume = resume and (folder / checkpoint.FILE).is_file()
    # Who goes on has all there is to know in the folder: the run it came from may be gone.
    ancestor = Ancestor.of(config, folder) if config.init and not resume else None
    data = corpus.load(config.data)
    for line in data.messages:
        console.print(line, highlight=False)
    torch.manual_seed(config.seed)
    # Before the folder is begun: a name may be wrong.
    pretrained = None if resume else adoption(config, console)
    if not (folder / "config.toml").is_file():
        files.write(folder / "config.toml", config.to_toml())
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # tf32: the loss cannot tell, the clock can
    if pretrained:
        pretrained.save(folder)
        tokenizers, model = pretrained.tokenizers, pretrained.model
    else:
        tokenizers, model = built(config, data, folder, ancestor)
    model = model.to(device)
    origin = ancestor.give(model, tokenizers, data) if ancestor else None
    for line in origin.told if origin else ():
        console.print(line, highlight=False, markup=False)
    table = config.training
    _, train = fitting(data, "train", tokenizers, console)
    pairs, val = fitting(data, "val", tokenizers, console)

    def bleu(model: Model) -> float:
        translator = Translator(config, tokenizers, model)
        return greedy_bleu(translator, pairs, val, 4 * table.batch_tokens)

    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    some = model.trainable_count < model.parameter_count
    learned = f" ({model.trainable_count:,} of them learn)" if some else ""
    noun = "sentences" if config.is_language_model else "pairs"
    console.print(
        f"{len(train):,} {noun}, vocabulary {sizes[0]:,} and {sizes[1]:,}, "
        f"{model.parameter_count:,} parameters{learned}, {device}",
        highlight=False,
    )
    around, gpu = surroundings(device, jobs), device.startswith("cuda")
    limits = (table.batch_tokens, table.batch_sentences)
    batches = BatchSampler(train, *limits, config.seed, table.bucket_shapes if gpu else None)
    with Display(console) as display, own_stream(gpu):
        data_there, precision = DeviceDataset(train, device), dtype(table.precision, device)
        graphs = gpu and table.cuda_graphs and model.supports_cuda_graphs
        update = Update(model, table, data_there, precision, graphs, display.say)
        judge = bleu if table.checkpoint_metric == "bleu" else None
        loop = Loop(table, update, batches, val, folder, display, judge)
        if resume:
            same_data(folder, data)
            loop.restore()
            display.say(f"resuming at step {loop.progress.step}")
        else:
            (folder / "metrics.jsonl").unlink(missing_ok=True)
            facts = {"parameters": model.parameter_count, "data": data.checksums(), **around}
            inherited = {"init": origin.record} if origin else {}
            loop.log(event="start", seed=config.seed, **facts, **inherited)
        progress = loop.run()
    # A run that is finished was trained where it began, not where it is resumed.
    card = card_of(config, model, progress, data, {**around, **beginning(folder)})
    write_card(folder, card)
    draw_examples(load(folder, device), data, folder / "examples")
    return card


def dtype(precision: str, device: str) -> torch.dtype:
    """What to compute in. A CPU computes in float32 unless a user says otherwise."""
    if precision == "auto":
        able = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if able else torch.float32
    if precision == "bfloat16" and device == "cpu":
        try_bfloat16()
    return getattr(torch, precision)


def try_bfloat16() -> None:
    """Some CPUs announce bfloat16 and then die of it: try in another process first."""
    trial = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode:
        raise UserError(
            "this CPU cannot multiply bfloat16 matrices (a trial ended badly): use "
            "training.precision=float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the "
            "environment and try again"
        )


@contextmanager
def own_stream(gpu: bool) -> Iterator[None]:
    """CUDA graphs cannot be recorded on the default stream: work on another one from the start."""
    if not gpu:
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # cuDNN's attention takes a third of a second to plan each new shape, and wins nothing at these.
    with torch.cuda.stream(stream), sdpa_kernel(KERNELS):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def check(config: Config, folder: Path, resume: bool) -> None:
    """Whether a run can begin in this folder, or go on in it."""
    if resume and (folder / "config.toml").is_file():
        changed = changes(read_config(folder), config)
        if changed:
            raise UserError(
                f"{folder} was trained with other settings ({', '.join(changed)}): a resumed run "
                "keeps its settings; choose another --run for new ones"
            )
        return
    if folder.exists() and (not folder.is_dir() or files.list_files(folder)):
        resumable = (folder / "config.toml").is_file()
        way = "continue it with --resume, or " if resumable else "it is no run folder, so "
        raise UserError(f"{folder} is there already: {way}choose another --run")


def same_data(folder: Path, data: Corpus) -> None:
    """A run goes on with the text it began with, or not at all."""
    began = beginning(folder).get("data", {})
    changed = [
        split for split, found in data.checksums().items() if began.get(split, found) != found
    ]
    if changed:
        raise UserError(
            f"the data is not what {folder} began with ({', '.join(changed)} changed): "
            "train anew in another --run"
        )


def beginning(folder: Path) -> dict[str, Any]:
    """The first event of a run."""
    metrics = folder / "metrics.jsonl"
    first = metrics.read_text("utf-8").partition("\n")[0] if metrics.is_file() else ""
    return json.loads(first) if first else {}


def adoption(config: Config, console: Console) -> PretrainedCheckpoint | None:
    """What a run begins with that others have trained."""
    if not config.is_pretrained:
        return None
    checkpoint = load_pretrained(config.model, config.tokenizer)
    told = "the tokenizer is the model's own, whatever [tokenizer] says of a vocabulary"
    longest = checkpoint.tokenizers.max_tokens
    if longest < config.tokenizer.max_tokens:
        told += f"; texts have {longest} tokens at most, as the model has no places for more"
    console.print(told, highlight=False, markup=False)
    tune, rate = config.model.tune, config.training.learning_rate
    if rate > 5 * tune.usual_learning_rate:
        usual = f'{tune.usual_learning_rate:g} is usual with tune = "{tune.kind}"'
        told = f"training.learning_rate is {rate:g}, and {usual}"
        console.print(f"{told}: more may undo what the model knows", highlight=False, markup=False)
    return checkpoint


def built(
    config: Config, data: Corpus, folder: Path, ancestor: Ancestor | None
) -> tuple[TokenizerPair, Model]:
    """Tokenizers, and a model whose weights are still by chance."""
    tokenizers = tokenizers_of(config, data, folder, ancestor)
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return tokenizers, build(config.model, *sizes, tokenizers.joint, folder)


def tokenizers_of(
    config: Config, data: Corpus, folder: Path, ancestor: Ancestor | None
) -> TokenizerPair:
    """Those in the folder, or those of the run it came from, or new ones learned from the text."""
    path = folder / "tokenizer.json"
    if ancestor and config.tokenizer.reuse:
        replace(ancestor.tokenizers, max_tokens=config.tokenizer.max_tokens).save(path)
    elif not path.is_file():
        TokenizerPair.train(config.tokenizer, data["train"], data.symbols).save(path)
    return TokenizerPair.load(path)


def fitting(
    data: Corpus, split: str, tokenizers: TokenizerPair, console: Console
) -> tuple[list[tuple[str, str]], EncodedPairs]:
    """A split, and the same as ids, without the pairs that are longer than the tokenizer's limit."""
    encode = EncodedPairs.from_pairs if data.is_synthetic else cache.encode_cached
    encoded = encode(data[split], tokenizers)
    limit = tokenizers.max_tokens
    lengths = enumerate(encoded.lengths())
    keep = [row for row, (target, source) in lengths if source <= limit + 1 and target <= limit]
    if not keep:
        raise UserError(
            f"every pair of the {split} split is longer than {limit} tokens: raise "
            "tokenizer.max_tokens, if the model has places for more"
        )
    if len(keep) == len(encoded):
        return data[split], encoded
    skipped = len(encoded) - len(keep)
    console.print(f"{split}: {skipped:,} pairs over {limit} tokens left out", highlight=False)
    kept = EncodedPairs([encoded.source[r] for r in keep], [encoded.target[r] for r in keep])
    return [data[split][r] for r in keep], kept


def draw_examples(translator: Translator, data: Corpus, folder: Path) -> None:
    """Attention pictures of the first validation sentences, where the model has cross-attention."""
    if translator.config.is_language_model:
        return
    readable = (source for source, _ in data["val"] if can_read(translator, source))
    texts = list(islice(readable, EXAMPLES))
    for number, output in enumerate(translator.translate(texts), start=1):
        if "cross" in output.attention:
            path = folder / f"{number}.png"
            draw(path, output.attention["cross"], output.source, output.target)


def can_read(translator: Translator, text: str) -> bool:
    """Not too long, and no character that training never showed."""
    try:
        translator.validate_text(text, 1)
    except UserError:
        return False
    return True
