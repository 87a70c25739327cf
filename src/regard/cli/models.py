"""`regard train`, `translate` and `evaluate`."""

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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
    parse_integers,
    print_json,
    read_lines,
)
from regard.devices import resolve_device
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
            help="Random seed of initial weights, batch order and dropout.", show_default=False
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="A run folder to initialise the weights from.", show_default=False),
    ] = None,
    settings: Settings = None,
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
        path = folder / "config.toml"
        config = presets.validate(presets.override(presets.read_file(path), overrides), str(path))
    else:
        folder = run or Path("runs") / Path(preset).stem
        config = presets.load(preset, overrides)

    from regard.training import train

    try:
        card = train(config, folder, resolve_device(device), resume, out)
    except KeyboardInterrupt as error:
        err.print(explain_interrupt(folder, device), markup=False, highlight=False)
        raise typer.Exit(128 + getattr(error, "signal_number", signal.SIGINT)) from None
    print_result(card["figures"], folder)


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
    from regard.training import checkpoint

    if (folder / checkpoint.FILE).is_file():
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
    config = run / "config.toml"
    return (
        config.is_file()
        and presets.validate(presets.read_file(config), str(config)).is_language_model
    )


def to_dict(output: Any) -> dict[str, Any]:
    """A translation as a JSON object."""
    names = ("text", "source", "target", "score", "normalised")
    record = {name: getattr(output, name) for name in names}
    return record | {"alternatives": [to_dict(other) for other in output.alternatives]}


@app.command()
def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="The split to evaluate on.")] = "test",
    beam: Annotated[str, typer.Option(help="Beam widths, as in 1,5,10.")] = "1",
    outputs: Annotated[
        Path | None,
        typer.Option(help="Write source, reference and outputs to this file, one line each (TSV)."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(help="Evaluate only this many sentences, the first.", show_default=False),
    ] = None,
    ablate: Annotated[
        Literal["heads", "attention"] | None,
        typer.Option(
            help="Also evaluate ablations. heads: each head ablated, one at a time. "
            "attention: uniform weights in each layer; the most-attended source token masked.",
            show_default=False,
        ),
    ] = None,
    bleu: Annotated[
        bool,
        typer.Option("--bleu", help="With --ablate heads: BLEU too (one search per head)."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --ablate: plot it to this .png or .svg file.", show_default=False),
    ] = None,
    theme: Annotated[
        Literal["light", "dark"], typer.Option(help="With --plot: light or dark.")
    ] = "light",
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Evaluate a trained model on a split of its data."""
    widths = parse_integers(beam, "--beam")
    if first is not None and first < 1:
        raise UserError(f"--first is 1 or more, not {first}")
    if not ablate and (plot or bleu):
        needs = "--ablate heads or --ablate attention" if plot else "--ablate heads"
        raise UserError(f"{'--plot' if plot else '--bleu'} needs {needs}")
    translator = load_translator(run, device, int8)

    from regard.evaluation import ablation_report, evaluate, report
    from regard.text import corpus

    pairs = corpus.load_split(translator.config.data, split)[:first]
    ablations = {"ablations": run_ablation(translator, pairs, ablate, bleu, plot)} if ablate else {}
    figures = evaluate(translator, pairs, widths)
    document = {"run": str(run), "split": split, **figures, **ablations}
    if plot:
        title = f"{run.resolve().name}, {split}"
        ablation_report.draw(plot, document["ablations"], title, theme)
    if outputs:
        report.write_outputs(outputs, pairs, document)
    for result in document["results"]:
        del result["outputs"]
    if as_json:
        print_json(document)
        return
    report.print_report(document, out)
    if ablate:
        ablation_report.print_report(document["ablations"], out)
    if plot:
        out.print(plot, highlight=False, markup=False)


def run_ablation(
    translator: Any,
    pairs: list[tuple[str, str]],
    kind: Literal["heads", "attention"],
    bleu: bool,
    plot: Path | None,
) -> dict[str, Any]:
    """Evaluate the ablations with a progress bar, after a check that the plot can be written."""
    from regard.display import Display
    from regard.evaluation import ablate
    from regard.evaluation.ablation_report import format_row

    if plot:
        from regard.diagrams.saving import figure_suffix

        figure_suffix(plot)
    with Display(err) as display:

        def report(fraction: float, row: dict[str, Any]) -> None:
            display.update(fraction, format_row(row))
            if not err.is_terminal:
                display.print(format_row(row))

        return ablate(translator, pairs, kind, bleu=bleu, progress=report)
