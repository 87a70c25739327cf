"""A report of labs, as Markdown and as an HTML page: claim, derivation, plot, table, checks and verdict."""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from regard.diagrams.themes import style_variables
from regard.labs.lab import Check, Lab, Result, Value, format_number
from regard.tables import markdown_table
from regard.template import PICTURES_BESIDE, fill

MARKDOWN_FILE, HTML_FILE = "labs.md", "labs.html"
INTRODUCTION = (
    "Claims about attention, run by `regard lab`. Each lab judges the law (what is measured equals what was "
    "derived) and the effect (what the claim says happens at these parameters); it passes with both."
)

Results = Sequence[tuple[Lab, Result]]


def render_markdown(results: Results) -> str:
    """One section per lab; the plots NAME.png and NAME-dark.png are expected in the same folder."""
    sections = [markdown_section(lab, result) for lab, result in results]
    return "\n".join(["# Labs\n", f"{INTRODUCTION}\n", *sections])


def markdown_section(lab: Lab, result: Result) -> str:
    absent = lab_command(lab, result.seed, lab.absent)
    return "\n".join(
        [
            f"## {lab.name}: {lab.claim}\n",
            f"```\n{lab.derivation.strip()}\n```\n",
            picture_tag(lab),
            markdown_table([result.table.columns, *format_cells(result)]),
            *(f"- {note}" for note in result.notes),
            *[""] * bool(result.notes),
            f"`{lab_command(lab, result.seed, changed_parameters(lab, result))}`: {result.verdict}.\n",
            *markdown_checks("Law", result.law),
            *markdown_checks("Effect", result.effect),
            f"The effect is absent with `{absent}`.\n",
        ]
    )


def markdown_checks(heading: str, checks: Sequence[Check]) -> list[str]:
    lines = [f"- {'' if check.passed else '**failed** '}{check.message}" for check in checks]
    return [f"{heading}:\n", *lines, ""]


def render_html(results: Results) -> str:
    """The same report as an HTML page, with an overview; it needs the plots and nothing else."""
    links = [
        f'<li><a href="#{lab.name}">{escape(lab.name)}</a> {html_verdict(result)}'
        f"<span>{escape(lab.claim)}</span></li>"
        for lab, result in results
    ]
    parts = {
        "themes": style_variables(),
        "introduction": html_code(INTRODUCTION),
        "links": "\n".join(links),
        "labs": "\n".join(html_section(lab, result) for lab, result in results),
    }
    template = resources.files("regard.labs").joinpath("report.html").read_text("utf-8")
    return fill(template, parts, img_src=PICTURES_BESIDE)


def html_section(lab: Lab, result: Result) -> str:
    heading = "".join(f"<th>{escape(column)}</th>" for column in result.table.columns)
    rows = (
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in format_cells(result)
    )
    command = lab_command(lab, result.seed, changed_parameters(lab, result))
    return "\n".join(
        [
            f'<section id="{lab.name}">',
            f"<h2>{escape(lab.name)} {html_verdict(result)}</h2>",
            picture_tag(lab),
            f"<details><summary>Derivation</summary><pre>{escape(lab.derivation.strip())}</pre></details>",
            f"<div class=scroll><table><tr>{heading}</tr>{''.join(rows)}</table></div>",
            *(f"<p class=note>{escape(note)}</p>" for note in result.notes),
            html_checks("Law", result.law),
            html_checks("Effect", result.effect),
            f"<p><code>{escape(command)}</code>; the effect is absent with "
            f"<code>{escape(lab_command(lab, result.seed, lab.absent))}</code>.</p>",
            "</section>",
        ]
    )


def html_verdict(result: Result) -> str:
    return f"<em class={'pass' if result.passed else 'fail'}>{escape(result.verdict)}</em>"


def html_checks(heading: str, checks: Sequence[Check]) -> str:
    items = (
        f"<li class={'pass' if check.passed else 'fail'}>{escape(check.message)}</li>"
        for check in checks
    )
    return f"<h3>{heading}</h3><ul class=checks>{''.join(items)}</ul>"


def html_code(text: str) -> str:
    """Escaped text, with `code` in code tags."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def picture_tag(lab: Lab) -> str:
    """HTML for the light or the dark plot, as the reader's colour scheme asks."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{lab.name}-dark.png">'
    return f'<picture>{dark}<img alt="{escape(lab.claim)}" src="{lab.name}.png"></picture>\n'


def format_cells(result: Result) -> list[list[str]]:
    return [
        [c if isinstance(c, str) else format_number(c) for c in row] for row in result.table.rows
    ]


def lab_command(lab: Lab, seed: int, parameters: dict[str, Value]) -> str:
    settings = [f"--set {name}={value}" for name, value in parameters.items()]
    return " ".join(["regard lab", lab.name, f"--seed {seed}", *settings])


def changed_parameters(lab: Lab, result: Result) -> dict[str, Value]:
    """The parameters that differ from their defaults."""
    defaults = lab.parameters().model_dump()
    return {name: value for name, value in result.parameters.items() if value != defaults[name]}
