"""`regard evaluate` and `score`."""

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import shipped
from regard.cli.common import (
    AsJson,
    Bfloat16,
    Device,
    Engine,
    Int8,
    Overwrite,
    Run,
    app,
    check_new,
    echo,
    err,
    find_data,
    load_translator,
    out,
    parse_integers,
    print_json,
)
from regard.config import limits
from regard.errors import RegardWarning, UserError, join_names
from regard.escaping import to_json

Fields = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="With a .jsonl file as --input: the fields of the source and of its references. By default "
        "source,target.",
        show_default=False,
    ),
]
CHUNK = 1000  # pairs that `score` keeps in memory with their attention weights


@app.command()
def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            help=f"A run folder, or a shipped model: {join_names(shipped.names())}. Several, joined by "
            "commas, are an ensemble. May be left out to score only --hypotheses.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="The split of the run's data to evaluate on.", show_default="test"),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="Evaluate on this file instead: sources line by line, or a .tsv or .jsonl with references.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --input: the references, line by line. Repeat it for several references.",
            show_default=False,
        ),
    ] = None,
    fields: Fields = None,
    hypotheses: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also score another system's outputs, line by line, and test the difference. Repeatable.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[
        str | None, typer.Option(help="Beam widths, as in 1,5,10.", show_default="1")
    ] = None,
    outputs: Annotated[
        Path | None,
        typer.Option(help="Write source, reference and outputs to this file, one line each (TSV)."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.SENTENCES,
            help="Evaluate only this many sentences, the first.",
            show_default=False,
        ),
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
        typer.Option(
            help="With --ablate: plot it to this .png, .svg or .pdf file.", show_default=False
        ),
    ] = None,
    theme: Annotated[
        Literal["light", "dark"], typer.Option(help="With --plot: light or dark.")
    ] = "light",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    device: Device = "auto",
    int8: Int8 = False,
    bfloat16: Bfloat16 = False,
    engine: Engine = "pytorch",
) -> None:
    """Evaluate a trained model, or another system's outputs, on a split or on your own files."""
    widths = parse_integers(beam or "1", "--beam", limits.BEAM)
    if not ablate and (plot or bleu):
        needs = "--ablate heads or --ablate attention" if plot else "--ablate heads"
        raise UserError(f"{'--plot' if plot else '--bleu'} needs {needs}")
    check_new([path for path in (plot, outputs) if path], overwrite)
    options = {"--split": split, "--beam": beam, "--ablate": ablate}
    options |= {"--int8": int8, "--bfloat16": bfloat16, "--engine": engine != "pytorch"}
    check_evaluation(run, input_, reference, fields, hypotheses, options)
    data, others = read_data(
        run, split or "test", input_, reference or [], fields, hypotheses or []
    )
    data, others = data.take(first), {name: texts[:first] for name, texts in others.items()}
    data, others = preprocess(run, data, others) if run else (data, others)
    translator = load_translator(run, device, int8, bfloat16, engine) if run else None

    from regard.evaluation import ablation_report, evaluate_systems, report

    document: dict[str, Any] = {"run": str(run)} if run else {}
    document |= {"split": None if input_ else split or "test", "input": input_ and str(input_)}
    # Before the evaluation: a mistake in its options is reported at once.
    ablations = run_ablation(translator, data.pairs, ablate, bleu, plot) if ablate else None
    document |= evaluate_systems(translator, data, others, widths)
    document |= {"ablations": ablations} if ablations else {}
    if plot:
        title = (
            f"{shipped.name_of(run) if run else ''}, {input_.name if input_ else split or 'test'}"
        )
        ablation_report.draw(plot, document["ablations"], title, theme)
    if outputs:
        report.write_outputs(outputs, data, document)
    for result in [*document["results"], *document.get("hypotheses", [])]:
        del result["outputs"]
    if as_json:
        print_json(document)
        return
    report.print_report(document, out)
    if ablate:
        ablation_report.print_report(document["ablations"], out)
    if plot:
        out.print(plot)


def check_evaluation(
    run: Path | None,
    input_: Path | None,
    reference: list[Path] | None,
    fields: str | None,
    hypotheses: list[Path] | None,
    options: dict[str, Any],
) -> None:
    """Raise an error for options that do not belong together."""
    if run is None:
        if not hypotheses or not input_:
            raise UserError(
                "missing argument RUN: give a run folder, or another system's outputs to score, with --input "
                "SOURCES --reference REFERENCES --hypotheses OUTPUTS"
            )
        for option in ("--beam", "--ablate", "--int8", "--bfloat16", "--engine"):
            if options[option]:
                raise UserError(f"{option} needs a RUN to evaluate")
    if input_ and options["--split"]:
        raise UserError(f"choose --split {options['--split']} or --input {input_}, not both")
    if not input_ and (reference or fields):
        option = "--reference" if reference else "--fields"
        raise UserError(f"{option} needs --input, the file of the sources")


def read_data(
    run: Path | None,
    split: str,
    input_: Path | None,
    references: list[Path],
    fields: str | None,
    hypotheses: list[Path],
) -> tuple[Any, dict[str, list[str]]]:
    """The test set, and the outputs of other systems by file."""
    from regard.loading import read_configs
    from regard.text.references import read_hypotheses

    config = read_configs(run)[0] if run else None
    if hypotheses and config and config.is_language_model:
        raise UserError("a language model has no translations to compare: leave out --hypotheses")
    names = [str(path) for path in hypotheses]
    if len(set(names)) < len(names):
        raise UserError("--hypotheses names a file twice")
    data = read_test_set(run, config, split, input_, references, fields)
    where = str(input_ or f"the {split} split")
    return data, {name: read_hypotheses(name, len(data), where) for name in names}


def read_test_set(
    run: Path | None,
    config: Any,
    split: str,
    input_: Path | None,
    references: list[Path],
    fields: str | None,
) -> Any:
    """The sources and references of a split of a run's data, or of the user's files: raw text."""
    from regard.text import corpus
    from regard.text import references as files

    if input_ is None:
        assert run is not None  # see `check_evaluation`
        return files.ReferenceSet.from_pairs(corpus.load_split(find_data(run), split, raw=True))
    if fields and files.table_suffix(input_) != ".jsonl":
        raise UserError(f"--fields names the fields of a .jsonl file, and {input_} is not one")
    if config and config.is_language_model:
        if references:
            raise UserError(
                f"a language model has no source: give its text as --input, and leave out {references[0]}"
            )
        return files.read_sentences(input_)
    names = getattr(config.data, "fields", files.FIELDS) if config else files.FIELDS
    names = tuple(name.strip() for name in fields.split(",")) if fields else names
    data = files.read_references(input_, references, names)
    for message in data.warnings(input_):
        warnings.warn(message, RegardWarning, stacklevel=2)
    return data


def preprocess(run: Path, data: Any, others: dict[str, list[str]]) -> tuple[Any, Any]:
    """Sources, references and other systems' outputs as the run's model knows text (`data.preprocess`)."""
    from regard.loading import read_configs
    from regard.text import moses
    from regard.text.references import ReferenceSet

    settings = read_configs(run)[0].data
    source, target = moses.find_rule(settings, "source"), moses.find_rule(settings, "target")
    if source is None or target is None:
        return data, others
    references = [[target(text) for text in texts] for texts in data.references]
    outputs = {name: [target(text) for text in texts] for name, texts in others.items()}
    return ReferenceSet([source(text) for text in data.sources], references), outputs


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


@app.command()
def score(
    run: Run,
    input_: Annotated[
        Path,
        typer.Option(
            "--input",
            help="Pairs to score: a .tsv or .jsonl file, or the sources line by line, with --target.",
            show_default=False,
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Option(help="The translations of --input, line by line.", show_default=False),
    ] = None,
    fields: Fields = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="With the attention weights of every pair.")
    ] = False,
    device: Device = "auto",
    int8: Int8 = False,
    bfloat16: Bfloat16 = False,
) -> None:
    """Score given translations: the log-probability of every token, as JSON lines."""
    data, _ = read_data(run, "", input_, [target] if target else [], fields, [])
    translator, pairs = load_translator(run, device, int8, bfloat16), data.pairs
    translator.encode_pairs(
        pairs
    )  # reports a pair that the model cannot read before it prints anything
    for start in range(0, len(pairs), CHUNK):
        for pair in translator.score(pairs[start : start + CHUNK], attention=attention):
            echo(to_json(score_to_dict(pair, attention)))


def score_to_dict(pair: Any, attention: bool) -> dict[str, Any]:
    """A scored pair as a JSON object."""
    names = ("source", "target", "log_probs", "score", "perplexity")
    record = {name: getattr(pair, name) for name in names}
    if attention:
        record["attention"] = {name: weights.tolist() for name, weights in pair.attention.items()}
    return record
