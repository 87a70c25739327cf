"""`regard lab`: claims about attention, run, drawn, and written by the reader."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard import files, presets
from regard.cli.common import AsJson, app, err, out, say_json
from regard.errors import UserError, join_names, suggest

if TYPE_CHECKING:
    from regard.labs import Lab, Result
    from regard.labs.worksheet import Marks


@app.command("lab")
def lab(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Labs to run; without one: list them."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every lab.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Turn a parameter of every lab named, as in beta=8; copying.beta=8 of one. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Where the random numbers begin.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="The short form of labs that train models.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write NAME.png and NAME-dark.png, and labs.md to read them with.",
            show_default=False,
        ),
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Say what can be turned.")
    ] = False,
    worksheet: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write NAME.py, a function to fill in.", show_default=False
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Hold a filled-in worksheet against the law.", show_default=False
        ),
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds that an answer may take.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Run claims about attention: what is claimed, why, what was measured, and whether it holds."""
    if sum((parameters, worksheet is not None, check is not None)) > 1:
        raise UserError(
            "--parameters, --worksheet and --check each ask for something else: give one"
        )
    chosen = choose(names or [], everything)
    given = {"--set": settings, "--quick": quick, "--plots": plots}
    unread = [name for name, value in given.items() if value]
    if unread and (parameters or worksheet or check or not chosen):
        raise UserError(
            f"{unread[0]} is for a lab that is run: name one or give --all, and ask for nothing else"
        )
    if check:
        marks(chosen, check, limit, as_json)
    elif worksheet:
        worksheets(chosen, worksheet, as_json)
    elif parameters:
        print_parameters(chosen or choose([], True), as_json)
    elif chosen:
        turned = turn(chosen, settings or [], quick)
        run(chosen, turned, seed, plots, as_json)
    else:
        catalogue(as_json)


def choose(names: Sequence[str], everything: bool) -> "list[Lab]":
    """The labs that a user named."""
    from regard.labs import LABS

    if names and everything:
        raise UserError("name labs, or give --all: not both")
    for name in names:
        if name not in LABS:
            raise UserError(
                f'there is no lab "{name}".{suggest(name, LABS)} Labs: {join_names(LABS)}'
            )
    return [LABS[name] for name in (LABS if everything else dict.fromkeys(names))]


def catalogue(as_json: bool) -> None:
    from regard.labs import LABS

    if as_json:
        say_json({"labs": [{"name": lab.name, "claim": lab.claim} for lab in LABS.values()]})
        return
    show_rows(["lab", "claim"], [(lab.name, lab.claim) for lab in LABS.values()])


def turn(labs: "Sequence[Lab]", settings: Iterable[str], quick: bool) -> list[dict[str, Any]]:
    """The parameters of each lab, all checked before the first one runs."""
    turned: dict[str, dict[str, Any]] = {lab.name: dict(lab.quick) if quick else {} for lab in labs}
    for setting in settings:
        match presets.parse_setting(setting):
            case [parameter], value:
                for each in turned.values():
                    each[parameter] = value
            case [name, parameter], value if name in turned:
                turned[name][parameter] = value
            case path, _:
                raise UserError(
                    f"--set {'.'.join(path)}: no such lab is run; write parameter=value or "
                    f"lab.parameter=value. Labs here: {join_names(turned)}"
                )
    for lab in labs:
        try:
            lab.checked(turned[lab.name])
        except UserError as error:
            several = f". For one of several labs write {lab.name}.parameter=value" * (
                len(labs) > 1
            )
            raise UserError(f"{error}{several}") from None
    return list(turned.values())


def run(
    labs: "Sequence[Lab]",
    turned: Sequence[dict[str, Any]],
    seed: int,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Run labs one after the other; exit code 1 if a claim does not hold."""
    results: list[Result] = []
    documents = []
    for number, (lab, params) in enumerate(zip(labs, turned, strict=True), start=1):
        with waiting(f"[{number}/{len(labs)}] {lab.name}", shown=len(labs) > 1 or bool(lab.quick)):
            result = lab.run(seed, **params)
            written = draw(lab, result, plots) if plots else []
        results.append(result)
        documents.append(result.document | ({"plots": written} if plots else {}))
        if not as_json:
            show(lab, result)
            typer.echo("".join(f"written: {path}\n" for path in written))
    if plots:
        from regard.labs.report import NAME, page

        files.write(plots / NAME, page(list(zip(labs, results, strict=True))))
    passed = all(result.passed for result in results)
    if as_json:
        say_json(documents[0] if len(labs) == 1 else {"labs": documents, "passed": passed})
    elif len(labs) > 1:
        summary(results)
    if not passed:
        raise typer.Exit(1)


@contextmanager
def waiting(what: str, shown: bool) -> Iterator[None]:
    """A sign of life: on a terminal while it lasts, elsewhere a line."""
    if not shown:
        yield
    elif err.is_terminal:
        with err.status(Text(what)):
            yield
    else:
        err.print(what, markup=False, highlight=False)
        yield


def draw(lab: "Lab", result: "Result", folder: Path) -> list[str]:
    from regard.diagrams import save

    places = {"light": folder / f"{lab.name}.png", "dark": folder / f"{lab.name}-dark.png"}
    for theme, place in places.items():
        save(lab.plot(result, theme), place)
    return [str(place) for place in places.values()]


def show(lab: "Lab", result: "Result") -> None:
    say(f"{lab.name}: {lab.claim}", "bold")
    say(f"\n{lab.derivation.strip()}\n")
    show_rows(result.table.columns, result.table.rows)
    params = "".join(f"{name} = {value}, " for name, value in result.parameters.items())
    notes = "".join(f"\n{note}" for note in result.notes)
    say(f"{notes}\n{params}seed = {result.seed}", "dim")
    for one in result.checks:
        say(one.message, mark=one.passed)
    verdict = "the claim holds" if result.passed else "THE CLAIM DOES NOT HOLD"
    say(f"{lab.name}: {verdict} ({took(result.seconds)})", "green" if result.passed else "red")


def summary(results: "Sequence[Result]") -> None:
    rows = [
        (one.name, "pass" if one.passed else "FAIL", took(one.seconds), held(one))
        for one in results
    ]
    show_rows(["lab", "verdict", "time", "checks"], rows)
    passed, spent = sum(one.passed for one in results), sum(one.seconds for one in results)
    say(f"{passed} of {len(results)} claims hold ({took(spent)})", "bold")


def took(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def held(result: "Result") -> str:
    return f"{sum(one.passed for one in result.checks)} of {len(result.checks)}"


def print_parameters(labs: "Sequence[Lab]", as_json: bool) -> None:
    told = {lab.name: list(describe_parameters(lab)) for lab in labs}
    if as_json:
        say_json(
            {
                "labs": [
                    {"name": name, "parameters": parameters} for name, parameters in told.items()
                ]
            }
        )
        return
    for name, parameters in told.items():
        if parameters:
            say(name, "bold")
            show_rows(
                ["parameter", "default", "range", "what it is"],
                [list(one.values()) for one in parameters],
            )
        else:
            say(f"{name}: nothing to turn")


def describe_parameters(lab: "Lab") -> Iterator[dict[str, Any]]:
    """Each parameter with its default, its range in words, and its line."""
    for name, field in lab.parameters.model_json_schema().get("properties", {}).items():
        bounds = {
            "from": field.get("minimum"),
            "above": field.get("exclusiveMinimum"),
            "to": field.get("maximum"),
            "below": field.get("exclusiveMaximum"),
        }
        words = [f"{word} {end:.12g}" for word, end in bounds.items() if end is not None]
        yield {
            "name": name,
            "default": field["default"],
            "range": " ".join(words) or join_names(map(str, field.get("enum", ()))),
            "what": field.get("description", ""),
        }


def worksheets(labs: "Sequence[Lab]", folder: Path, as_json: bool) -> None:
    from regard.labs.worksheet import place, write

    if not labs:
        raise UserError("--worksheet needs a lab: regard lab NAME --worksheet DIR")
    for lab in labs:
        place(lab, folder)  # all or none
    written = {lab.name: str(write(lab, folder)) for lab in labs}
    if as_json:
        say_json({"worksheets": written})
        return
    for name, path in written.items():
        typer.echo(f"{path}\n  when it is filled in: regard lab {name} --check {path}")


def marks(labs: "Sequence[Lab]", file: Path, limit: float, as_json: bool) -> None:
    """Grade one answer; exit code 1 if a property fails."""
    from regard.labs.worksheet import check

    if len(labs) != 1:
        raise UserError("--check grades the answer to one lab: regard lab NAME --check FILE")
    found = check(labs[0], file, limit)
    if as_json:
        say_json(found.document)
    else:
        show_marks(found)
    if not found.passed:
        raise typer.Exit(1)


def show_marks(found: "Marks") -> None:
    """What held; what did not, with what came out, what the law says, and what that hint."""
    if found.printed:
        say(f"your file printed:\n{found.printed.rstrip()}\n", "dim")
    from regard.labs.lab import shown

    taught = set()
    for one in found.checks:
        say(one.name, mark=one.passed)
        if not one.passed:
            lesson = f"\n{one.hint}" if one.hint not in taught else ""
            say(
                f"came out: {shown(one.measured)}; the law says: {one.requirement}{lesson}",
                indent=6,
            )
            taught.add(one.hint)
    if found.remark:
        say(found.remark, mark=False)
    share = f"{sum(one.passed for one in found.checks)} of {len(found.checks)} checks pass"
    if found.passed:
        say(f"{found.function} obeys the law: {share}", "green")
    else:
        say(f"{found.function} is not there yet" + f": {share}" * bool(found.checks), "red")


def show_rows(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A small table; numbers to six digits, on the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    body = [list(row) for row in rows]
    for column, head in enumerate(heads):
        number = all(type(row[column]) in (int, float) for row in body)  # a bool is neither
        table.add_column(Text(head), justify="right" if number else "left", no_wrap=column == 0)
    for row in body:
        cells = (f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row)
        table.add_row(*map(Text, cells))
    wide = out if out.is_terminal else Console(width=120)  # a file has no border
    wide.print(table)


def say(text: str, style: str = "", mark: bool | None = None, indent: int = 0) -> None:
    """Text as it stands; `mark` says in front whether something passed."""
    verdict = {None: Text(""), True: Text("pass  ", "green"), False: Text("FAIL  ", "bold red")}
    lines = text.replace("\n", "\n" + " " * indent)
    out.print(verdict[mark] + Text(" " * indent + lines, style))
