"""A Markdown report of labs: claim, derivation, plot, table, checks and verdict."""

from collections.abc import Sequence

from regard.labs.lab import Lab, Result, Value, format_number
from regard.tables import markdown_table

FILE_NAME = "labs.md"


def render_report(results: Sequence[tuple[Lab, Result]]) -> str:
    """One section per lab; the plots NAME.png and NAME-dark.png are expected in the same folder."""
    parts = ["# Labs\n", "Claims about attention, run by `regard lab`.\n"]
    parts += [render_section(lab, result) for lab, result in results]
    return "\n".join(parts)


def render_section(lab: Lab, result: Result) -> str:
    verdict = "The claim holds" if result.passed else "**The claim fails**"
    settings = [f"--set {name}={value}" for name, value in changed_parameters(lab, result).items()]
    command = " ".join(["regard lab", lab.name, f"--seed {result.seed}", *settings])
    cells = (
        [c if isinstance(c, str) else format_number(c) for c in row] for row in result.table.rows
    )
    return "\n".join(
        [
            f"## {lab.name}: {lab.claim}\n",
            f"```\n{lab.derivation.strip()}\n```\n",
            picture_tag(lab),
            markdown_table([result.table.columns, *cells]),
            *(f"- {note}" for note in result.notes),
            *[""] * bool(result.notes),
            f"{verdict}: `{command}`\n",
            *(
                f"- {'' if check.passed else '**failed** '}{check.message}"
                for check in result.checks
            ),
            "",
        ]
    )


def picture_tag(lab: Lab) -> str:
    """HTML for the light or the dark plot, as the reader's colour scheme asks."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{lab.name}-dark.png">'
    return f'<picture>{dark}<img alt="{lab.claim}" src="{lab.name}.png"></picture>\n'


def changed_parameters(lab: Lab, result: Result) -> dict[str, Value]:
    """The parameters that differ from their defaults."""
    defaults = lab.parameters().model_dump()
    return {name: value for name, value in result.parameters.items() if value != defaults[name]}
