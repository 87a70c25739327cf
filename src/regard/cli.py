"""The commands: thin over all the rest. PyTorch is imported only by commands that need it."""

import json
import shlex
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
) -> None:
    """Translate texts with a trained model."""
    texts = [*(text or []), *(lines_of(input_) if input_ else [])]
    if not texts:
        raise UserError(
            'nothing to translate: give a text in quotes, or --input FILE ("-" is standard input)'
        )
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and not sample:
        raise UserError(f"--{next(iter(chosen)).replace('_', '-')} needs --sample")
    translator = load(run, device)

    from regard.translator import Sampling

    drawn = Sampling(**chosen) if sample else None
    outputs = translator.translate(texts, beam=beam, nbest=nbest, sample=drawn, attention=False)
    if as_json:
        say_json([described(output) for output in outputs])
        return
    for output in outputs:
        if nbest == 1:
            typer.echo(output.text)
        for rank, best in enumerate([output, *output.alternatives] if nbest > 1 else (), start=1):
            typer.echo(f"{rank}\t{best.normalised:.4f}\t{best.text}")


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
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Measure a trained model on a split of its data."""
    widths = [positive(part, "--beam") for part in beam.split(",")]
    translator = load(run, device)

    from regard.evaluation import evaluate, report
    from regard.text import corpus

    pairs = corpus.load(translator.config.data)[split]
    found = {"run": str(run), "split": split, **evaluate(translator, pairs, widths)}
    if outputs:
        report.write_outputs(outputs, pairs, found)
    for result in found["results"]:
        del result["outputs"]
    if as_json:
        say_json(found)
    else:
        report.show(found, out)


def positive(text: str, option: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise UserError(f'{option} takes whole numbers from 1, as in 1,5,10: got "{text}"')
    return int(text)


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


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PRESET...", help="Presets or .toml files.", show_default=False),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="A setting and its values. May be repeated."),
    ] = None,
    settings: Settings = None,
    seeds: Annotated[int, typer.Option(help="Runs of each system, with seeds 1 to N.")] = 3,
    to: Annotated[Path, typer.Option("--out", help="Where the tables go.")] = Path("compare"),
    kept: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Where the runs go; several comparisons may share them. [default: OUT/runs]",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of the data is measured.")] = "test",
    beam: Annotated[
        str, typer.Option(help="Beam widths, as in 1,5; the first is in the table.")
    ] = "1",
    jobs: Annotated[int, typer.Option(help="How many runs at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run.")] = False,
    device: Device = "auto",
) -> None:
    """Train every preset, variation and seed; write a table a paper could print."""
    widths = [positive(part, "--beam") for part in beam.split(",")]
    if jobs < 1:
        raise UserError(f"--jobs is 1 or more, not {jobs}")

    from regard.compare import plan, sweep, write_report
    from regard.compare.sweep import finished

    runs = plan(names, vary or [], settings or [], seeds, kept or to / "runs")
    if dry_run:
        for run in runs:
            state = "there" if finished(run, split, widths) else "to run"
            typer.echo(f"{state}\t{run.system.label}, seed {run.seed}\t{run.folder}")
        return
    failed = sweep(runs, split, widths, pick(device), jobs, typer.echo)
    typer.echo(write_report(runs, split, command_line(), failed, to))
    typer.echo(f"written: {to}/table.md, table.csv, table.tex, curves.png, results.json")
    if failed:
        raise typer.Exit(1)


def command_line() -> str:
    return shlex.join(["regard", *sys.argv[1:]])


data = typer.Typer(help="Public corpora: list them, get them.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("list")
def list_data() -> None:
    """List the corpora that are known, and where they lie on this machine."""
    from regard.text import datasets

    table = Table(box=None, header_style="bold")
    for name in ("data", "languages", "licence", "here"):
        table.add_column(name, no_wrap=name == "data")
    for row in datasets.status():
        place = str(row.where) if row.where else f"regard data get {row.name}"
        table.add_row(row.name, " ".join(row.languages), row.licence, place)
    out.print(table)


@data.command("get")
def get_data(
    name: Annotated[
        str, typer.Argument(help="A name from `regard data list`.", show_default=False)
    ],
) -> None:
    """Download a corpus into the user's cache, checked against its checksum."""
    from rich.progress import Progress

    from regard.text import datasets

    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bars: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        folder = datasets.get(name, report)
    typer.echo(folder)


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
        # Not splitlines(), which also cuts at form feeds and other characters inside a line.
        lines = data.decode("utf-8").replace("\r\n", "\n").split("\n")
        return lines if lines[-1] else lines[:-1]
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
