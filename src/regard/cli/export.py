"""`regard export` and `regard page`: runs for others."""

import tempfile
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import files
from regard.cli.common import AsJson, OptionalRuns, Overwrite, app, err, out, print_json
from regard.config import limits
from regard.errors import UserError

DAY = 24 * 3600  # seconds
Float32 = Annotated[
    bool,
    typer.Option("--float32", help="Weights with 32 bits instead of 8: four times the size."),
]
Labs = Annotated[
    bool,
    typer.Option(
        "--labs",
        help="A page with every lab that trains nothing, measured now: this takes a few minutes.",
    ),
]


@app.command()
def export(
    context: typer.Context,
    to: Annotated[
        str,
        typer.Option(
            metavar="hub|page|ctranslate2",
            help="The format. hub: a folder for the Hugging Face hub, which regard.load reads. page: one "
            "HTML file that runs one or two models in a browser and shows their attention. ctranslate2: a "
            "folder for CTranslate2, also as --engine ctranslate2:FOLDER.",
            show_default=False,
        ),
    ],
    path: Annotated[
        Path, typer.Option("--out", help="The new folder or file to write.", show_default=False)
    ],
    runs: OptionalRuns = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="hub: the split whose BLEU the model card states; test by default, if its data is there.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[
        int, typer.Option(min=1, max=limits.BEAM, help="hub: beam width of that evaluation.")
    ] = 5,
    bleu: Annotated[
        bool,
        typer.Option("--bleu/--no-bleu", help="hub: whether to evaluate the model for its card."),
    ] = True,
    float32: Float32 = False,
    labs: Labs = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="ctranslate2: weights with 8 bits instead of 32.")
    ] = False,
    shortlist: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=limits.DIM,
            help="ctranslate2: only the N most probable translations of each source token, and frequent "
            "tokens, can be generated, as in 20. Faster; needs the training data.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write runs for others: for the Hugging Face hub, as a page for the browser, or for CTranslate2."""
    if split is not None and not bleu:
        raise UserError("--split names what to evaluate, and --no-bleu evaluates nothing: drop one")

    from regard.export import EXPORTS, Evaluation, find_format
    from regard.export import export as write

    taken = find_format(to).own_options
    for name in sorted(set().union(*(form.own_options for form in EXPORTS.values())) - taken):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise UserError(f"--to {to} has no option --{name}: leave it out")
    evaluation = Evaluation(split, beam, skip=not bleu)
    options: dict[str, Any] = {"float32": float32, "labs": labs, "int8": int8}
    options |= {"shortlist": shortlist, "overwrite": overwrite, "console": err}
    record = write(runs or [], to, path, evaluation, **options)
    if as_json:
        print_json(record)
    else:
        PRINT[to](record)


@app.command()
def page(
    runs: OptionalRuns = None,
    float32: Float32 = False,
    labs: Labs = False,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Whether to open the browser.")
    ] = True,
) -> None:
    """Open one or two models, or labs, in the browser: see attention, change it. No server, no network."""
    from regard.export import export as write

    path = new_page()
    print_page(write(runs or [], "page", path, float32=float32, labs=labs, console=err))
    if open_browser and not webbrowser.open(path.as_uri()):
        err.print("no browser found: open the file yourself")


def new_page() -> Path:
    """A file in a new temporary folder, where it stays for the browser; those of earlier days are deleted."""
    temporary, prefix = Path(tempfile.gettempdir()), "regard-page-"
    for folder in temporary.glob(f"{prefix}*"):
        with suppress(OSError, UserError):  # of another user, say
            if time.time() - folder.stat().st_mtime > DAY:
                files.remove(folder)
    with files.report_errors(temporary):
        return Path(tempfile.mkdtemp(prefix=prefix)) / "page.html"


def print_hub(record: dict[str, Any]) -> None:
    """What was written, what the card says, and what it cannot say."""
    out.print(f"{record['out']}: {', '.join(record['files'])}")
    scores = record["scores"]
    if scores is None:
        message = f"no BLEU in the model card: {record['why_no_scores']}"
        err.print(message)
    else:
        interval = scores["interval"]
        around = "" if interval is None else " (95 % interval {:.1f} to {:.1f})".format(*interval)
        result = f"{scores['split']}, beam {scores['beam']}: BLEU {scores['bleu']:.2f}{around}"
        out.print(f"{result}; {scores['source']}")
    if record["transformers"]:
        message = "also loads in transformers.AutoModelForCausalLM"
    else:
        message = f"in Regard's format only, not LLaMA's: {record['why_not_transformers']}"
    out.print(message)


def print_page(record: dict[str, Any]) -> None:
    """Where the page is, how large, and what is inside."""
    parts = [f"{record['out']}: {record['bytes'] / 1e6:.1f} MB"]
    if record["models"]:
        parts.append(f"{', '.join(record['models'])}, {record['weights']} weights")
    if record["labs"]:
        parts.append(f"{len(record['labs'])} labs, {record['settings']} settings")
    message = ", ".join(parts)
    out.print(message)


def print_ctranslate2(record: dict[str, Any]) -> None:
    """Where the folder is, how large, and how to use it."""
    size = f"{record['bytes'] / 1e6:.1f} MB, {record['weights']} weights"
    shortlist = record["shortlist"]
    more = "" if shortlist is None else f", a shortlist of {shortlist} candidates per source token"
    use = f"use it with --engine ctranslate2:{record['out']}, or ctranslate2.{record['class']}"
    out.print(f"{record['out']}: {size}{more}; {use}")


PRINT = {"hub": print_hub, "page": print_page, "ctranslate2": print_ctranslate2}
