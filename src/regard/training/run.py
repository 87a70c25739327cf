"""A training run from start to end: data, model, warm start, loop, result card."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from regard import checksums, documents, files, presets, schemas
from regard.config import Config
from regard.devices import use_threads
from regard.display import Display
from regard.errors import RegardWarning
from regard.loading import load, read_config
from regard.models import Model, PretrainedCheckpoint, build, load_pretrained
from regard.terminal import Console
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair
from regard.training import checkpoint, synthetic
from regard.training.advice import advise
from regard.training.average import validate_average
from regard.training.build import EncodedSplits, build_loop
from regard.training.card import build_card, describe_environment, write_card
from regard.training.data import (
    LoadCorpus,
    describe_choices,
    load_data,
    load_once,
    load_tokenizers,
    resolve_defaults,
)
from regard.training.device import report_out_of_memory, use_cuda_stream
from regard.training.distributed import ALONE, World
from regard.training.examples import draw_examples
from regard.training.folder import (
    check_data_of_main,
    check_folder,
    check_same_data,
    check_shared_folder,
    clean_up,
    empty_on_error,
    is_finished,
    read_start_event,
)
from regard.training.loop import Callback, TrainingLoop
from regard.training.step import is_sharded
from regard.training.warm_start import SourceCheckpoint

FINISHED = "finished"


def train(
    config: Config | None,
    folder: Path,
    device: str,
    resume: bool,
    console: Console,
    jobs: int = 1,
    data: Corpus | None = None,
    callbacks: tuple[Callback, ...] = (),
    world: World = ALONE,
) -> dict[str, Any]:
    """Train in `folder` and return the result card. Resuming a finished run changes nothing.

    A run is finished in this order: best weights, examples, card; only then is its checkpoint dropped.

    `config`: None to resume with that of the folder. `jobs`: how many runs share the device, for the
    card. `data`: instead of that of the config. `callbacks` get each event of metrics.jsonl. `world`: the
    processes that train together, all of which call this.
    """
    if not world.is_main:
        return train_beside_main(folder, device, world)
    # The config of a folder is resolved, and its data may be gone: a finished run does not need it.
    config_is_given = config is not None
    given = config or read_config(folder)
    # Files are read once, when their size decides about settings or else when training starts.
    load_corpus = load_once() if data is None else lambda _: data
    config = synthetic.choose_files(given)
    config = resolve_defaults(config, load_corpus) if config_is_given else given
    located = presets.locate_pairs(config, folder)
    display = Display(console)
    # A finished run is only read, and its folder may be read-only.
    with nullcontext() if resume and is_finished(folder) else files.lock(folder):
        check_folder(located, folder, resume)
        if is_finished(folder):
            if config_is_given:
                check_same_data(folder, load_corpus(located.data))
            clean_up(folder, config)
            display.print(f"{folder} is finished: there is nothing to continue")
            world.broadcast(FINISHED)
            return world.broadcast(documents.read(folder / "card.json", schemas.Card))
        resume = (folder / checkpoint.FILE).is_file()
        choices = describe_choices(given, config)
        with (
            empty_on_error(folder),
            report_out_of_memory(config.training.batch_tokens),
            use_saved_threads(folder, world, display)
            if resume and device == "cpu"
            else nullcontext(),
        ):
            return train_in_folder(
                config,
                choices,
                folder,
                device,
                resume,
                display,
                jobs,
                load_corpus,
                callbacks,
                world,
            )


def train_in_folder(
    config: Config,
    choices: Sequence[str],
    folder: Path,
    device: str,
    resume: bool,
    display: Display,
    jobs: int,
    load_corpus: LoadCorpus,
    callbacks: tuple[Callback, ...],
    world: World,
) -> dict[str, Any]:
    """The steps of a run: data, model, warm start, loop, card.

    `choices`: lines about settings that follow the data. `resume`: from its checkpoint.
    """
    files.remove_temporary(folder)
    if resume:
        checkpoint.verify_files(folder)
    located = presets.locate_pairs(config, folder)
    made = (
        {"synthetic": cards} if (cards := make_synthetic(config, folder, device, display)) else {}
    )
    # A resumed run has everything in its folder: the run it was initialised from may be gone.
    source_checkpoint = (
        SourceCheckpoint.load(config, folder) if config.init and not resume else None
    )
    data = load_data(located, display, load_corpus)
    display.print_all(choices)
    tokenizers, model = build_model(config, folder, data, source_checkpoint, resume, display)
    model = move_to_device(model, device, config, world)
    init = apply_warm_start(source_checkpoint, model, tokenizers, data, display)
    environment = describe_environment(device, jobs, world.size)
    splits = EncodedSplits.encode(data, tokenizers, display)
    # The other processes wait for this: now they read what is in the folder.
    world.broadcast((data.checksums(), resume))
    world.copy_from_main(list(model.parameters()))
    with use_cuda_stream(device):
        loop = build_loop(config, folder, device, splits, tokenizers, model, display, world)
        loop.callbacks, loop.file_checksums = callbacks, checksums.of_run(folder)
        with display:
            if resume:
                resume_loop(loop, data)
            else:
                start_log(loop, config.seed, model, data, {**environment, **init, **made})
            progress = loop.run()
            average = validate_average(loop)
    from_scratch = not config.is_pretrained and config.init is None
    advice = [f"warning: {line}" for line in advise(loop, from_scratch)]
    display.print_all(advice)
    # A run that was already finished was trained where it started, not where it is resumed.
    start = {**environment, **read_start_event(folder)}
    card = build_card(config, model, progress, data.add_messages(advice), start, average)
    draw_examples(load(folder, device), data, folder / "examples")
    write_card(folder, card)
    clean_up(folder, config)
    return world.broadcast(card)


def train_beside_main(folder: Path, device: str, world: World) -> dict[str, Any]:
    """`train` in a process that is not the first: it reads what the first has put into the folder."""
    message = world.broadcast()
    if message == FINISHED:
        return world.broadcast()
    checksums_of_main, resume = message
    check_shared_folder(folder)
    config = read_config(folder)
    display = Display(Console(quiet=True))
    with (
        report_out_of_memory(config.training.batch_tokens),
        warnings.catch_warnings(action="ignore", category=RegardWarning),  # the first process warns
    ):
        data = load_data(presets.locate_pairs(config, folder), display)
        check_data_of_main(data.checksums(), checksums_of_main, folder)
        tokenizers, model = build_model(config, folder, data, None, resume=True, display=display)
        model = move_to_device(model, device, config, world)
        splits = EncodedSplits.encode(data, tokenizers, display)
        world.copy_from_main(list(model.parameters()))
        with use_cuda_stream(device):
            loop = build_loop(config, folder, device, splits, tokenizers, model, display, world)
            if resume:
                loop.restore()
            loop.run()
    return world.broadcast()


def make_synthetic(
    config: Config, folder: Path, device: str, display: Display
) -> list[dict[str, Any]]:
    """Make the synthetic pairs of a run that are not there yet; return their cards."""
    if not synthetic.recipes(config):
        return []
    save_config(config, folder)  # before the pairs: it says how to continue

    def train_first(config: Config, folder: Path) -> None:
        train(config, folder, device, resume=True, console=display.console)

    return synthetic.prepare(presets.locate_pairs(config, folder), device, display, train_first)


def save_config(config: Config, folder: Path) -> None:
    if not (folder / "config.toml").is_file():
        files.write(folder / "config.toml", config.to_toml())


def use_saved_threads(folder: Path, world: World, display: Display) -> AbstractContextManager[None]:
    """Compute with as many threads as when the run started: they decide in which order sums round.

    On another number of processes, they round in another order anyway.
    """
    default = torch.get_num_threads()
    start = read_start_event(folder)
    saved = start.get("threads") or default
    if start.get("processes", 1) != world.size:
        saved = default
    if saved != default:
        display.print(f"using {saved} CPU threads, as when this run started (now {default})")
    return use_threads(saved)


def build_model(
    config: Config,
    folder: Path,
    data: Corpus,
    source_checkpoint: SourceCheckpoint | None,
    resume: bool,
    display: Display,
) -> tuple[TokenizerPair, Model]:
    """The tokenizers and the model, with pretrained or random weights, and their files in `folder`."""
    torch.manual_seed(config.seed)
    # Load a pretrained model before anything is written: its name may be wrong.
    pretrained = (
        load_pretrained_model(config, display) if config.is_pretrained and not resume else None
    )
    save_config(config, folder)
    if pretrained:
        pretrained.save(folder)
        return pretrained.tokenizers, pretrained.model
    init_tokenizers = source_checkpoint.tokenizers if source_checkpoint else None
    tokenizers = load_tokenizers(config, folder, data, init_tokenizers)
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return tokenizers, build(config.model, *sizes, tokenizers.joint, folder)


def load_pretrained_model(config: Config, display: Display) -> PretrainedCheckpoint:
    """Load a pretrained model with its tokenizers, and report what that changes."""
    pretrained = load_pretrained(config.model, config.tokenizer)
    message = (
        "using the tokenizer of the pretrained model: the vocabulary of [tokenizer] is ignored"
    )
    max_tokens = pretrained.tokenizers.max_tokens
    if max_tokens < config.tokenizer.max_tokens:
        message += (
            f"; texts have at most {max_tokens} tokens, as many as the model has positions for"
        )
    display.print(message)
    tune, learning_rate = config.model.tune, config.training.learning_rate
    if learning_rate > 5 * tune.usual_learning_rate:
        display.print(
            f"warning: training.learning_rate is {learning_rate:g}; usual with tune = "
            f'"{tune.kind}" is {tune.usual_learning_rate:g}. A higher rate may destroy the '
            "pretrained weights"
        )
    return pretrained


def move_to_device(model: Model, device: str, config: Config, world: World) -> Model:
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # TF32: faster, with no effect on the loss
    # What is to be sharded may be too large for the device as a whole.
    return model if is_sharded(config.training, world) else model.to(device)


def apply_warm_start(
    source_checkpoint: SourceCheckpoint | None,
    model: Model,
    tokenizers: TokenizerPair,
    data: Corpus,
    display: Display,
) -> dict[str, Any]:
    """Initialise the model from the source checkpoint, if there is one; return the card's entry."""
    if source_checkpoint is None:
        return {}
    started = source_checkpoint.warm_start(model, tokenizers, data)
    display.print_all(started.messages)
    return {"init": started.record}


def start_log(
    loop: TrainingLoop, seed: int, model: Model, data: Corpus, facts: dict[str, Any]
) -> None:
    """Start a new log with an event that describes the run."""
    files.remove(loop.folder / "metrics.jsonl")
    counts = {"parameters": model.parameter_count, "data": data.checksums()}
    loop.log(event="start", seed=seed, **counts, **facts)


def resume_loop(loop: TrainingLoop, data: Corpus) -> None:
    """Continue from the last checkpoint, with the same data."""
    check_same_data(loop.folder, data)
    loop.restore()
    loop.display.print(f"resuming at step {loop.progress.step}")
