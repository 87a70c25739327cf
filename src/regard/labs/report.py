"""Labs on paper: what was claimed, why, what was measured and whether it holds, in Markdown."""

from collections.abc import Sequence

from regard.labs.lab import Lab, Result, Value, shown
from regard.tables import markdown_table

NAME = "labs.md"


def page(results: Sequence[tuple[Lab, Result]]) -> str:
    """One section a lab, with the pictures NAME.png and NAME-dark.png beside the page."""
    parts = ["# Labs\n", "Claims about attention, run by `regard lab`.\n"]
    parts += [section(lab, result) for lab, result in results]
    return "\n".join(parts)


def section(lab: Lab, result: Result) -> str:
    verdict = "The claim holds" if result.passed else "**The claim does not hold**"
    params = [f"--set {name}={value}" for name, value in turned(lab, result).items()]
    command = " ".join(["regard lab", lab.name, f"--seed {result.seed}", *params])
    cells = ([c if isinstance(c, str) else shown(c) for c in row] for row in result.table.rows)
    return "\n".join(
        [
            f"## {lab.name}: {lab.claim}\n",
            f"```\n{lab.derivation.strip()}\n```\n",
            picture(lab),
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


def picture(lab: Lab) -> str:
    """Light or dark, as the reader's page is."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{lab.name}-dark.png">'
    return f'<picture>{dark}<img alt="{lab.claim}" src="{lab.name}.png"></picture>\n'


def turned(lab: Lab, result: Result) -> dict[str, Value]:
    """The parameters that are not where they stand by default."""
    usual = lab.parameters().model_dump()
    return {name: value for name, value in result.parameters.items() if value != usual[name]}
