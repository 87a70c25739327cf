"""`regard lab`: run claims about attention, plot them, and grade worksheet answers."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from regard import files, presets
from regard.cli.common import AsJson, Overwrite, app, check_new, echo, err, print_json
from regard.cli.lab_report import print_grade, print_result, print_summary, print_table, print_text
from regard.config import limits
from regard.errors import UserError, join_names, suggest

if TYPE_CHECKING:
    from regard.labs import Lab, Result


@app.command("lab")
def lab(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Labs to run; without names, list them."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every lab.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of every selected lab, as in beta=8, or of one, as in copying.beta=8. "
            "May be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=limits.SEED, help="Random seed.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use a shorter run of labs that train or time models.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write NAME.png, NAME-dark.png and a report, labs.html and labs.md.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="List the parameters.")] = False,
    worksheet: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write NAME.py, a function to implement.", show_default=False
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Grade a completed worksheet.", show_default=False),
    ] = None,
    limit: Annotated[
        float, typer.Option(min=0, max=limits.SECONDS, help="Time limit for --check, in seconds.")
    ] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Run claims about attention: claim, derivation, measurement and verdict."""
    if sum((parameters, worksheet is not None, check is not None)) > 1:
        raise UserError(
            "--parameters, --worksheet and --check exclude each other: give one of them"
        )
    selected = select_labs(names or [], everything)
    run_options = {"--set": settings, "--quick": quick, "--plots": plots}
    given = [name for name, value in run_options.items() if value]
    if given and (parameters or worksheet or check or not selected):
        raise UserError(
            f"{given[0]} needs a lab to run: name one or give --all, without --parameters, --worksheet "
            "and --check"
        )
    if check:
        grade_answer(selected, check, limit, as_json)
    elif worksheet:
        write_worksheets(selected, worksheet, as_json)
    elif parameters:
        print_parameters(selected or select_labs([], True), as_json)
    elif selected:
        if plots:
            check_new(list_plots(selected, plots), overwrite)
        run_labs(selected, parse_settings(selected, settings or [], quick), seed, plots, as_json)
    else:
        list_labs(as_json)


def select_labs(names: Sequence[str], everything: bool) -> "list[Lab]":
    """The labs with these names, or all of them."""
    from regard.labs import LABS

    if names and everything:
        raise UserError("name labs or give --all, not both")
    for name in names:
        if name not in LABS:
            raise UserError(
                f'there is no lab "{name}".{suggest(name, LABS)} Labs: {join_names(LABS)}'
            )
    return [LABS[name] for name in (LABS if everything else dict.fromkeys(names))]


def list_labs(as_json: bool) -> None:
    from regard.labs import LABS

    if as_json:
        print_json({"labs": [{"name": lab.name, "claim": lab.claim} for lab in LABS.values()]})
        return
    print_table(["lab", "claim"], [(lab.name, lab.claim) for lab in LABS.values()])


def parse_settings(
    labs: "Sequence[Lab]", settings: Iterable[str], quick: bool
) -> list[dict[str, Any]]:
    """The parameters of each lab, validated for all labs before the first one runs."""
    by_lab: dict[str, dict[str, Any]] = {lab.name: dict(lab.quick) if quick else {} for lab in labs}
    for setting in settings:
        match presets.parse_setting(setting):
            case [parameter], value:
                for parameters in by_lab.values():
                    parameters[parameter] = value
            case [name, parameter], value if name in by_lab:
                by_lab[name][parameter] = value
            case path, _:
                raise UserError(
                    f"--set {'.'.join(path)}: this lab is not selected; write parameter=value or "
                    f"lab.parameter=value. Selected: {join_names(by_lab)}"
                )
    for lab in labs:
        try:
            lab.validate_parameters(by_lab[lab.name])
        except UserError as error:
            advice = f". To set it for one lab, write {lab.name}.parameter=value" * (len(labs) > 1)
            raise UserError(f"{error}{advice}") from None
    return list(by_lab.values())


def run_labs(
    labs: "Sequence[Lab]",
    settings: Sequence[dict[str, Any]],
    seed: int,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Run labs one after another; exit code 1 if a law fails or an effect is absent."""
    results: list[Result] = []
    documents = []
    for number, (lab, parameters) in enumerate(zip(labs, settings, strict=True), start=1):
        status = f"[{number}/{len(labs)}] {lab.name}"
        with show_status(status, enabled=len(labs) > 1 or bool(lab.quick)):
            result = lab.run(seed, **parameters)
            written = save_plots(lab, result, plots) if plots else []
        results.append(result)
        documents.append(result.to_dict() | ({"plots": written} if plots else {}))
        if not as_json:
            print_result(lab, result)
            echo("".join(f"written: {path}\n" for path in written))
    if plots:
        from regard.labs import report

        pairs = list(zip(labs, results, strict=True))
        files.write(plots / report.MARKDOWN_FILE, report.render_markdown(pairs))
        files.write(plots / report.HTML_FILE, report.render_html(pairs))
    passed = all(result.passed for result in results)
    if as_json:
        print_json(documents[0] if len(labs) == 1 else {"labs": documents, "passed": passed})
    elif len(labs) > 1:
        print_summary(results)
    if not passed:
        raise typer.Exit(1)


@contextmanager
def show_status(text: str, enabled: bool) -> Iterator[None]:
    """Show a spinner on a terminal while the body runs; elsewhere print one line."""
    if not enabled:
        yield
    elif err.is_terminal:
        with err.status(Text(text)):
            yield
    else:
        err.print(text)
        yield


def plot_paths(lab: "Lab", folder: Path) -> dict[str, Path]:
    """The plots of a lab, by theme."""
    return {"light": folder / f"{lab.name}.png", "dark": folder / f"{lab.name}-dark.png"}


def list_plots(labs: "Sequence[Lab]", folder: Path) -> list[Path]:
    """The files that --plots writes for these labs."""
    from regard.labs import report

    reports = [folder / report.MARKDOWN_FILE, folder / report.HTML_FILE]
    return [*(path for lab in labs for path in plot_paths(lab, folder).values()), *reports]


def save_plots(lab: "Lab", result: "Result", folder: Path) -> list[str]:
    from regard.diagrams import save

    paths = plot_paths(lab, folder)
    for theme, path in paths.items():
        save(lab.plot(result, theme), path)
    return [str(path) for path in paths.values()]


def print_parameters(labs: "Sequence[Lab]", as_json: bool) -> None:
    by_lab = {lab.name: list(describe_parameters(lab)) for lab in labs}
    if as_json:
        print_json({"labs": [{"name": name, "parameters": rows} for name, rows in by_lab.items()]})
        return
    for name, parameters in by_lab.items():
        if parameters:
            print_text(name, "bold")
            print_table(
                ["parameter", "default", "range", "description"],
                [list(parameter.values()) for parameter in parameters],
            )
        else:
            print_text(f"{name}: no parameters")


def describe_parameters(lab: "Lab") -> Iterator[dict[str, Any]]:
    """Name, default, range in words and description of each parameter."""
    for name, field in lab.parameters.model_json_schema().get("properties", {}).items():
        bounds = {
            "from": field.get("minimum"),
            "above": field.get("exclusiveMinimum"),
            "to": field.get("maximum"),
            "below": field.get("exclusiveMaximum"),
        }
        parts = [f"{word} {bound:.12g}" for word, bound in bounds.items() if bound is not None]
        yield {
            "name": name,
            "default": field["default"],
            "range": " ".join(parts) or join_names(map(str, field.get("enum", ()))),
            "description": field.get("description", ""),
        }


def write_worksheets(labs: "Sequence[Lab]", folder: Path, as_json: bool) -> None:
    from regard.labs.grading.worksheet import worksheet_path, write_worksheet

    if not labs:
        raise UserError("--worksheet needs a lab: regard lab NAME --worksheet DIR")
    for lab in labs:
        worksheet_path(lab, folder)  # write all or none
    written = {lab.name: str(write_worksheet(lab, folder)) for lab in labs}
    if as_json:
        print_json({"worksheets": written})
        return
    for name, path in written.items():
        echo(f"{path}\n  to check your answer: regard lab {name} --check {path}")


def grade_answer(labs: "Sequence[Lab]", file: Path, limit: float, as_json: bool) -> None:
    """Grade one answer; exit code 1 if a check fails."""
    from regard.labs.grading.worksheet import check_answer

    if len(labs) != 1:
        raise UserError("--check grades the answer to one lab: regard lab NAME --check FILE")
    report = check_answer(labs[0], file, limit)
    if as_json:
        print_json(report.to_dict())
    else:
        print_grade(report)
    if not report.passed:
        raise typer.Exit(1)
