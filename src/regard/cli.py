"""The commands: thin over all the rest. PyTorch is imported only by commands that need it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

import regard
from regard import presets
from regard.errors import UserError

app = typer.Typer(
    name="regard",
    help="Attention-based sequence-to-sequence models: train them, run them, see where they look.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where to compute; auto takes a GPU if there is one."),
]
Run = Annotated[
    Path, typer.Argument(help="A run folder, as `regard train` makes.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, as in model.decoder.layers=2. May be repeated.",
    ),
]


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention-based sequence-to-sequence models: train them, run them, see where they look."""


@app.command("presets")
def list_presets() -> None:
    """List the named experiments."""
    table = Table(box=None, header_style="bold")
    table.add_column("preset", no_wrap=True)
    table.add_column("what it is")
    for name, description in presets.names().items():
        table.add_row(name, description)
    out.print(table)


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
    settings: Settings = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run stands.")
    ] = False,
) -> None:
    """Train a model into a run folder."""
    overrides = [*(settings or []), *([] if seed is None else [f"seed={seed}"])]
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
    out.print(
        f"done in {figures['training_seconds']:.0f} s: validation loss {figures['val_loss']:.4f} "
        f"at step {figures['best_step']}. The run is in {folder}",
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
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Translate texts with a trained model."""
    texts = [*(text or []), *(lines_of(input_) if input_ else [])]
    if not texts:
        raise UserError(
            'nothing to translate: give a text in quotes, or --input FILE ("-" is standard input)'
        )

    outputs = load(run, device).translate(texts, attention=False)
    if as_json:
        say_json(
            [
                {
                    "text": o.text,
                    "source": o.source,
                    "target": o.target,
                    "score": o.score,
                    "normalised": o.normalised,
                }
                for o in outputs
            ]
        )
        return
    for output in outputs:
        typer.echo(output.text)


@app.command()
def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Measure a trained model on a split of its data."""
    translator = load(run, device)

    from regard.evaluation import evaluate
    from regard.text import corpus

    report = {"run": str(run), "split": split}
    report |= evaluate(translator, corpus.load(translator.config.data)[split])
    report.pop("outputs")
    if as_json:
        say_json(report)
    else:
        show(report)


def show(report: dict[str, Any]) -> None:
    """An evaluation as a table, and by length of the source."""
    for result in report["results"]:
        table = Table(
            box=None,
            header_style="bold",
            title=f"{report['run']}, {report['split']}",
            title_justify="left",
        )
        for name in (
            "perplexity",
            "bits/char",
            "token acc.",
            "exact match",
            "BLEU",
            "BLEU lower",
            "chrF",
            "sentences/s",
        ):
            table.add_column(name, justify="right")
        table.add_row(
            f"{report['perplexity']:.3f}",
            f"{report['bits_per_character']:.3f}",
            f"{report['token_accuracy']:.2%}",
            f"{result['exact_match']:.2%}",
            f"{result['bleu']:.2f}",
            f"{result['bleu_lower']:.2f}",
            f"{result['chrf']:.2f}",
            f"{result['sentences'] / result['seconds']:.0f}",
        )
        out.print(table)
        out.print(f"BLEU: {result['signatures']['bleu']}", style="dim", highlight=False)
        out.print()
        lengths = Table(box=None, header_style="bold")
        for name in ("source tokens", "sentences", "exact match", "token acc."):
            lengths.add_column(name, justify="right")
        lengths.add_column("")
        for row in result["lengths"]:
            lengths.add_row(
                f"{row['from']} - {row['to']}",
                str(row["sentences"]),
                f"{row['exact_match']:.1%}",
                f"{row['token_accuracy']:.1%}",
                "█" * round(20 * row["exact_match"]),
            )
        out.print(lengths)


@app.command()
def diagram(
    run: Run,
    text: Annotated[
        str, typer.Argument(help="The text to translate and draw.", show_default=False)
    ],
    out_: Annotated[Path, typer.Option("--out", help="The picture: .png, .svg or .html.")] = Path(
        "attention.png"
    ),
    layer: Annotated[
        int | None, typer.Option(help="Draw this layer alone (from 1).", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Draw this head alone (from 1).", show_default=False)
    ] = None,
    kind: Annotated[
        str, typer.Option("--mechanism", help="Which attention: cross, encoder or decoder.")
    ] = "cross",
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Light or dark.")] = "light",
    device: Device = "auto",
) -> None:
    """Draw where a model looks while it translates a text."""
    from regard.diagrams import draw

    output = load(run, device).translate([text])[0]
    found = output.attention
    if kind not in found:
        has = f"it has {', '.join(found)}" if found else "it has none at all"
        raise UserError(f'this model has no "{kind}" attention: {has}')
    rows = output.source if kind == "encoder" else output.target
    columns = output.target if kind == "decoder" else output.source
    draw(out_, found[kind], columns, rows, layer=layer, head=head, theme=theme)
    typer.echo(f"{output.text}\n{out_}")


def pick(device: str) -> str:
    """The device that a user's choice means here."""
    import torch

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise UserError("PyTorch sees no CUDA device here: use --device cpu")
    return "cuda" if there and device != "cpu" else "cpu"


def load(run: Path, device: str) -> Any:
    from regard.translator import load, read_config

    read_config(run)  # a wrong folder is told before PyTorch looks for devices
    return load(run, pick(device))


def lines_of(name: str) -> list[str]:
    """The lines of a file, or of standard input."""
    data = b""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{name}, line {line}: not valid UTF-8") from None


def say_json(document: Any) -> None:
    typer.echo(json.dumps(document, ensure_ascii=False, indent=1))


def main() -> None:
    """A user's mistake gets its sentence and exit code 2; our own mistakes show where they are."""
    try:
        app()
    except UserError as error:
        err.print(f"regard: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
