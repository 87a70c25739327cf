"""`regard train` and `translate`."""

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import presets
from regard.cli.common import (
    AsJson,
    Device,
    Int8,
    Run,
    Settings,
    app,
    err,
    load_translator,
    out,
    print_json,
    read_lines,
)
from regard.config import Config
from regard.devices import resolve_device
from regard.errors import UserError
from regard.text.hub import find_run


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
            help="Random seed of initial weights, batch order and dropout.", show_default=False
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
) -> None:
    """Train a model and write a run folder."""
    overrides = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += [] if init is None else [f"init={json.dumps(str(init))}"]
    if is_run_folder(preset, resume):
        folder = Path(preset)
        check_resumed_folder(folder, run, resume)
        config = presets.load(str(folder / "config.toml"), overrides)
    else:
        folder = run or Path("runs") / Path(preset).stem
        config = presets.load(preset, overrides)

    if adapter_only:
        config = save_adapter_only(config)

    from regard.training import train

    try:
        card = train(config, folder, resolve_device(device), resume, out)
    except KeyboardInterrupt as error:
        err.print(explain_interrupt(folder, device), markup=False, highlight=False)
        raise typer.Exit(128 + getattr(error, "signal_number", signal.SIGINT)) from None
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

    from regard.translator import read_config

    read_config(folder)


def explain_interrupt(folder: Path, device: str) -> str:
    """What Ctrl-C left, and the command that goes on from there."""
    from regard.training.folder import has_checkpoint

    if has_checkpoint(folder):
        options = [] if device == "auto" else ["--device", device]
        argument = presets.folder_argument(folder)
        command = shlex.join(["regard", "train", "--resume", argument, *options])
        return f"interrupted. Continue with: {command}"
    command = shlex.join(["regard", *sys.argv[1:]])
    return f"interrupted before the first checkpoint: nothing was kept. Start again with: {command}"


def print_result(figures: dict[str, Any], folder: Path) -> None:
    """Print the figures of a finished run and the paths of its diagrams."""
    bleu = figures["val_bleu_lower"]
    bleu_text = "" if bleu is None else f", BLEU {bleu:.2f}"
    out.print(
        f"done in {figures['training_seconds']:.0f} s: validation loss {figures['val_loss']:.4f}"
        f"{bleu_text} at step {figures['best_step']}. The run is in {folder}",
        highlight=False,
        markup=False,
    )
    for picture in sorted((folder / "examples").glob("*")):
        out.print(f"  {picture}", highlight=False, markup=False)


@app.command()
def translate(
    run: Run,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to translate, each in quotes.", show_default=False),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="A file with one text per line, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam width; 1 is greedy search.")] = 1,
    nbest: Annotated[int, typer.Option(help="Number of outputs per text.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling: the logits are divided by it.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sampling: only the k most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sampling: only the most probable tokens of total probability p."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: random seed.")] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Translate texts with a trained model."""
    texts = [*(text or []), *(read_lines(input_) if input_ else [])]
    if not texts and not is_language_model(run):
        raise UserError(
            'nothing to translate: give a text in quotes, or --input FILE ("-" is standard input)'
        )
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    if options and not sample:
        raise UserError(f"--{next(iter(options)).replace('_', '-')} needs --sample")
    translator = load_translator(run, device, int8)

    from regard.translator import Sampling

    sampling = Sampling(**options) if sample else None
    outputs = translator.translate(
        texts or [""], beam=beam, nbest=nbest, sample=sampling, attention=False
    )
    if as_json:
        print_json([to_dict(output) for output in outputs])
        return
    for output in outputs:
        if nbest == 1:
            typer.echo(output.text)
        for rank, best in enumerate([output, *output.alternatives] if nbest > 1 else (), start=1):
            typer.echo(f"{rank}\t{best.normalised:.4f}\t{best.text}")


def is_language_model(run: Path) -> bool:
    """Whether the run is a language model, which needs no source text."""
    config = find_run(run) / "config.toml"
    return (
        config.is_file()
        and presets.validate(presets.read_file(config), str(config)).is_language_model
    )


def to_dict(output: Any) -> dict[str, Any]:
    """A translation as a JSON object."""
    names = ("text", "source", "target", "score", "normalised")
    record = {name: getattr(output, name) for name in names}
    return record | {"alternatives": [to_dict(other) for other in output.alternatives]}
