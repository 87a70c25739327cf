"""`regard export`: a run for others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.common import AsJson, Run, app, err, out, print_json
from regard.errors import UserError


@app.command()
def export(
    run: Run,
    to: Annotated[
        str,
        typer.Option(
            metavar="hub",
            help="The format. hub: a folder for the Hugging Face hub, which regard.load reads.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--out", help="The new folder to write.", show_default=False)
    ],
    split: Annotated[
        str | None,
        typer.Option(
            help="The split whose BLEU the model card states; test by default, if its data is there.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam width of that evaluation.")] = 5,
    bleu: Annotated[
        bool, typer.Option("--bleu/--no-bleu", help="Whether to evaluate the model for its card.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a run for others: weights, config, tokenizer and a model card."""
    if beam < 1:
        raise UserError(f"--beam is 1 or more, not {beam}")
    if split is not None and not bleu:
        raise UserError("--split names what to evaluate, and --no-bleu evaluates nothing: drop one")

    from regard.export import Evaluation
    from regard.export import export as write

    record = write(run, to, folder, Evaluation(split, beam, skip=not bleu))
    if as_json:
        print_json(record)
        return
    print_record(record)


def print_record(record: dict[str, Any]) -> None:
    """What was written, what the card says, and what it cannot say."""
    out.print(f"{record['out']}: {', '.join(record['files'])}", highlight=False, markup=False)
    scores = record["scores"]
    if scores is None:
        message = f"no BLEU in the model card: {record['why_no_scores']}"
        err.print(message, highlight=False, markup=False)
    else:
        interval = scores["interval"]
        around = "" if interval is None else " (95 % interval {:.1f} to {:.1f})".format(*interval)
        result = f"{scores['split']}, beam {scores['beam']}: BLEU {scores['bleu']:.2f}{around}"
        out.print(f"{result}; {scores['source']}", highlight=False, markup=False)
    if record["transformers"]:
        message = "also loads in transformers.AutoModelForCausalLM"
    else:
        message = f"in Regard's format only, not LLaMA's: {record['why_not_transformers']}"
    out.print(message, highlight=False, markup=False)
