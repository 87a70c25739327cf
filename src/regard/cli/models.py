"""`regard train`, `translate` and `evaluate`: one model from its text to its figures."""

import json
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
    lines_of,
    load,
    out,
    pick,
    say_json,
    whole_numbers,
)
from regard.errors import UserError


@app.command()
def train(
    preset: Annotated[
        str,
        typer.Argument(
            help="A preset's name, or a file of your own that ends in .toml.", show_default=False
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(help="The run folder to make. [default: runs/PRESET]", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Initial weights, order of batches, dropout.", show_default=False),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="A run folder to start from.", show_default=False),
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run stands.")
    ] = False,
) -> None:
    """Train a model into a run folder."""
    overrides = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
    overrides += [] if init is None else [f"init={json.dumps(str(init))}"]
    config = presets.load(preset, overrides)
    folder = run or Path("runs") / Path(preset).stem

    from regard.training import train

    try:
        card = train(config, folder, pick(device), resume, out)
    except KeyboardInterrupt:
        again = f"regard train {preset} --run {folder} --resume"
        err.print(f"stopped. Go on with the same command and --resume: {again}", markup=False)
        raise typer.Exit(130) from None
    figures = card["figures"]
    bleu = figures["val_bleu_lower"]
    found = "" if bleu is None else f", BLEU {bleu:.2f}"
    out.print(
        f"done in {figures['training_seconds']:.0f} s: validation loss {figures['val_loss']:.4f}"
        f"{found} at step {figures['best_step']}. The run is in {folder}",
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
            help="A file with one text a line, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(help="Width of the beam; 1 is greedy search.")] = 1,
    nbest: Annotated[int, typer.Option(help="How many outputs for each text.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw outputs by chance.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling: below 1 bolder, above 1 wilder.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sampling: only the k likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sampling: only the likeliest tokens of total mass p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: which draws.")] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Translate texts with a trained model."""
    texts = [*(text or []), *(lines_of(input_) if input_ else [])]
    if not texts and not writes(run):
        raise UserError(
            'nothing to translate: give a text in quotes, or --input FILE ("-" is standard input)'
        )
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and not sample:
        raise UserError(f"--{next(iter(chosen)).replace('_', '-')} needs --sample")
    translator = load(run, device, int8)

    from regard.translator import Sampling

    drawn = Sampling(**chosen) if sample else None
    outputs = translator.translate(
        texts or [""], beam=beam, nbest=nbest, sample=drawn, attention=False
    )
    if as_json:
        say_json([described(output) for output in outputs])
        return
    for output in outputs:
        if nbest == 1:
            typer.echo(output.text)
        for rank, best in enumerate([output, *output.alternatives] if nbest > 1 else (), start=1):
            typer.echo(f"{rank}\t{best.normalised:.4f}\t{best.text}")


def writes(run: Path) -> bool:
    """Is the run a language model, which needs no text to begin with?"""
    config = run / "config.toml"
    return (
        config.is_file()
        and presets.validate(presets.read_file(config), str(config)).is_language_model
    )


def described(output: Any) -> dict[str, Any]:
    """A translation as JSON."""
    names = ("text", "source", "target", "score", "normalised")
    record = {name: getattr(output, name) for name in names}
    return record | {"alternatives": [described(other) for other in output.alternatives]}


@app.command()
def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    beam: Annotated[str, typer.Option(help="Beam widths, as in 1,5,10.")] = "1",
    outputs: Annotated[
        Path | None,
        typer.Option(help="Write source, reference and outputs there, a line each (TSV)."),
    ] = None,
    first: Annotated[
        int | None, typer.Option(help="Only the first sentences, so many.", show_default=False)
    ] = None,
    ablate: Annotated[
        Literal["heads", "attention"] | None,
        typer.Option(
            help="Also without a part of its attention. heads: each head ablated, one at a time. "
            "attention: uniform weights in each layer; the most-attended source token masked.",
            show_default=False,
        ),
    ] = None,
    bleu: Annotated[
        bool,
        typer.Option("--bleu", help="With --ablate heads: BLEU too (a search for each head)."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --ablate: draw it there, .png or .svg.", show_default=False),
    ] = None,
    theme: Annotated[
        Literal["light", "dark"], typer.Option(help="With --plot: light or dark.")
    ] = "light",
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Measure a trained model on a split of its data."""
    widths = whole_numbers(beam, "--beam")
    if first is not None and first < 1:
        raise UserError(f"--first is 1 or more, not {first}")
    if not ablate and (plot or bleu):
        needs = "--ablate heads or --ablate attention" if plot else "--ablate heads"
        raise UserError(f"{'--plot' if plot else '--bleu'} needs {needs}")
    translator = load(run, device, int8)

    from regard.evaluation import ablation_report, evaluate, report
    from regard.text import corpus

    pairs = corpus.load(translator.config.data)[split][:first]
    ablations = {"ablations": ablated(translator, pairs, ablate, bleu, plot)} if ablate else {}
    figures = evaluate(translator, pairs, widths)
    found = {"run": str(run), "split": split, **figures, **ablations}
    if plot:
        where = f"{run.resolve().name}, {split}"
        ablation_report.draw(plot, found["ablations"], where, theme)
    if outputs:
        report.write_outputs(outputs, pairs, found)
    for result in found["results"]:
        del result["outputs"]
    if as_json:
        say_json(found)
    else:
        report.print_report(found, out)
        if ablate:
            ablation_report.print_report(found["ablations"], out)
        if plot:
            out.print(plot, highlight=False, markup=False)


def ablated(
    translator: Any,
    pairs: list[tuple[str, str]],
    what: Literal["heads", "attention"],
    bleu: bool,
    plot: Path | None,
) -> dict[str, Any]:
    """The ablations, with a bar while they go on; what is wrong is told before they begin."""
    from regard.evaluation import ablate
    from regard.evaluation.ablation_report import format_row
    from regard.training.progress import Display

    if plot:
        from regard.diagrams.saving import figure_suffix

        figure_suffix(plot)
    with Display(err) as display:

        def progress(fraction: float, row: dict[str, Any]) -> None:
            display.advance(fraction, format_row(row))
            if not err.is_terminal:
                display.say(format_row(row))

        return ablate(translator, pairs, what, bleu=bleu, progress=progress)
