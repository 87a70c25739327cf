"""`regard train`."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import documents, presets, shipped, signals
from regard.cli.common import (
    Device,
    Settings,
    app,
    err,
    out,
)
from regard.config import Config, limits
from regard.errors import UserError


@app.command()
def train(
    preset: Annotated[
        str,
        typer.Argument(
            help="The name of a preset, or a .toml file; with --resume, a run folder will do.",
            show_default=False,
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(help="The run folder to write; runs/PRESET by default.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=limits.SEED,
            help="Random seed of initial weights, batch order and dropout.",
            show_default=False,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="A run folder to initialise the weights from.", show_default=False),
    ] = None,
    settings: Settings = None,
    adapter_only: Annotated[
        bool,
        typer.Option(
            "--adapter-only",
            help="With LoRA: save only the adapter; the run then needs the pretrained checkpoint.",
        ),
    ] = False,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its checkpoint.")
    ] = False,
    devices: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Train on this many devices of this machine: a process for each GPU, or on the CPU. For "
            "several machines, use torchrun.",
        ),
    ] = 1,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="With --devices: how often to start again from the last checkpoint if a process dies.",
        ),
    ] = 0,
) -> None:
    """Train a model and write a run folder."""
    overrides = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += [] if init is None else [f"init={documents.dumps(str(init))}"]
    with tell_once():
        config, folder = choose_run(preset, run, overrides, resume)
        if adapter_only:
            config = save_adapter_only(config)
        if devices > 1 or max_restarts:
            start_processes(folder, device, devices, max_restarts)
    train_here(config, folder, device, devices, resume)


@contextmanager
def tell_once() -> Iterator[None]:
    """Of the processes of a machine that train together, only the first tells a mistake in the command."""
    try:
        yield
    except UserError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            raise typer.Exit(2) from None
        raise


def choose_run(
    preset: str, run: Path | None, overrides: list[str], resume: bool
) -> tuple[Config, Path]:
    """What to train, and in which folder."""
    if resume:
        shipped.check_single(preset)
    if is_run_folder(preset, resume):
        folder = Path(preset)
        check_resumed_folder(folder, run, resume)
        path = folder / "config.toml"
        table = presets.override(presets.read_file(path), overrides)
        return presets.validate(table, str(path)), folder
    return presets.load(preset, overrides), run or Path("runs") / Path(preset).stem


def start_processes(folder: Path, device: str, devices: int, max_restarts: int) -> None:
    """Run this command in a process for each device, and exit with its code; return in those processes."""
    from regard.training import distributed

    if distributed.is_started():
        return distributed.check_devices(devices)
    if devices == 1:
        raise UserError("--max-restarts is for several devices: add --devices N")
    distributed.resolve_local_device(device, 0, devices)  # an error, if there are too few, once
    from regard.training.launch import STOPPED, launch

    try:
        code = launch(sys.argv[1:], devices, max_restarts, tell)
    except KeyboardInterrupt as stop:
        code = signals.exit_code(stop)
    if code in STOPPED:
        err.print(explain_interrupt(folder, device, devices))
    raise typer.Exit(code)


def tell(sentence: str) -> None:
    err.print(f"regard: {sentence}", style="red")


def train_here(config: Config, folder: Path, device: str, devices: int, resume: bool) -> None:
    """Train in this process, perhaps beside others, of which the first one prints the result."""
    from regard.training import distributed, train

    resume = resume or distributed.is_restarted()
    world = distributed.ALONE
    try:
        with distributed.join(device) as (world, own_device):
            card = train(config, folder, own_device, resume, out, world=world)
    except KeyboardInterrupt as error:
        # The launcher says it: it also stops processes that have lost one, to start all again.
        if world.is_main and not distributed.has_launcher():
            err.print(explain_interrupt(folder, device, devices))
        raise typer.Exit(signals.exit_code(error)) from None
    except UserError as error:
        if world.is_first_to_say(str(error)):
            raise
        raise typer.Exit(distributed.MISTAKE) from None
    except distributed.LostProcessError as error:
        if not distributed.has_launcher() and world.is_first_to_say("lost"):
            tell(str(error))
        raise typer.Exit(distributed.LOST) from None
    if world.is_main:
        print_result(card["figures"], folder)


def save_adapter_only(config: Config) -> Config:
    """The config with model.tune.adapter_only; an error unless LoRA is what is trained."""
    kind = config.model.tune.kind if config.is_pretrained else "full"
    if kind != "lora":
        raise UserError(
            f'--adapter-only is for LoRA, and this run trains {kind} weights: set model.tune = "lora" of a '
            'pretrained model (model.kind = "pretrained")'
        )
    table = config.model_dump()
    table["model"]["tune"]["adapter_only"] = True
    return Config.model_validate(table)


def is_run_folder(name: str, resume: bool) -> bool:
    """Whether the argument of `regard train` is a run folder. A preset of the same name wins: ./NAME."""
    path = Path(name)
    if name in presets.names() or path.is_file():
        return False
    if (path / "config.toml").is_file():
        return True
    return resume and (path.is_dir() or (not name.endswith(".toml") and len(path.parts) > 1))


def check_resumed_folder(folder: Path, run: Path | None, resume: bool) -> None:
    """Raise an error unless this run can be resumed, and --run names no other."""
    if not resume:
        raise UserError(f"{folder} is a run folder: add --resume to continue its training")
    if run and run.resolve() != folder.resolve():
        raise UserError(f"--resume {folder} continues in that folder: leave out --run {run}")

    from regard.loading import read_config

    read_config(folder)


def explain_interrupt(folder: Path, device: str, devices: int) -> str:
    """What Ctrl-C left, and the command that goes on from there."""
    from regard.training.folder import has_checkpoint

    if has_checkpoint(folder):
        options = [] if device == "auto" else ["--device", device]
        options += [] if devices == 1 else ["--devices", str(devices)]
        argument = presets.folder_argument(folder)
        command = shlex.join(["regard", "train", "--resume", argument, *options])
        return f"interrupted. Continue with: {command}"
    command = shlex.join(["regard", *sys.argv[1:]])
    return f"interrupted before the first checkpoint: nothing was kept. Start again with: {command}"


def print_result(figures: dict[str, Any], folder: Path) -> None:
    """Print the figures of a finished run and the paths of its diagrams."""
    from regard.runs import val_bleu

    bleu = val_bleu(figures)
    bleu_text = "" if bleu is None else f", BLEU {bleu:.2f}"
    out.print(
        f"done in {figures['training_seconds']:.0f} s: validation loss {figures['val_loss']:.4f}"
        f"{bleu_text} at step {figures['best_step']}. The run is in {folder}",
    )
    for picture in sorted((folder / "examples").glob("*")):
        out.print(f"  {picture}")
