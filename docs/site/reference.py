"""Generated pages: every command, every setting, every lab, the Python API."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

from regard import cli
from regard.cli.labs import describe_parameters
from regard.config.reference import Setting, format_default, list_settings
from regard.labs import LABS

# Modules of the Python API: what their `__all__` names is public.
MODULES = (
    *("regard", "regard.attention", "regard.search", "regard.models", "regard.interventions"),
    *("regard.diagrams", "regard.labs", "regard.statistics"),
)


def pages() -> Iterator[tuple[str, str]]:
    """(path on the site, Markdown) of every generated page."""
    yield "reference/cli.md", "\n".join(command_page())
    yield "reference/settings.md", "\n".join(settings_page())
    yield "labs-list.md", "\n".join(labs_page())
    yield "labs-live.md", LIVE_LABS
    links = "\n".join(f"- [{name}](api/{name}.md)" for name in MODULES)
    yield "reference/api.md", f"# Python API\n\nFrom the docstrings. {API}\n\n{links}\n"
    for name in MODULES:
        yield f"reference/api/{name}.md", api_page(name)


API = "How the parts are used together: [Regard in Python](../python.md), [Extending](../extending.md)."


# --- commands -------------------------------------------------------------------------------------


def command_page() -> Iterator[str]:
    app: Any = typer.main.get_command(cli.app)
    yield "# Commands\n"
    yield "Generated from the command line itself, as `regard --help` and `regard COMMAND --help`.\n"
    yield "```text\nregard [--version] [--help] COMMAND ...\n```\n"
    for name, command in app.commands.items():
        yield from describe_command(f"regard {name}", command, 2)


def describe_command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n\n{plain(command.help)}\n"
    if hasattr(command, "commands"):
        for sub, member in command.commands.items():
            yield from describe_command(f"{name} {sub}", member, level + 1)
        return
    visible = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in visible if not p.opts[0].startswith("-")]
    usage = [argument_form(p) for p in arguments]
    yield f"```text\n{' '.join([name, *usage, '[OPTIONS]'])}\n```\n"
    if visible:
        yield "| argument or option | meaning |\n|---|---|"
        for parameter in visible:
            yield f"| {form(parameter)} | {cell(meaning(parameter))} |"
        yield ""


def argument_form(parameter: Any) -> str:
    if parameter.metavar:
        return parameter.metavar
    word = parameter.name.rstrip("_").upper() + (" ..." if parameter.nargs == -1 else "")
    return word if parameter.required else f"[{word}]"


def form(parameter: Any) -> str:
    """`--beam N`, in code; alternatives joined by a slash."""
    if not parameter.opts[0].startswith("-"):
        return f"`{cell(argument_form(parameter))}`"
    value = ""
    if not getattr(parameter, "is_flag", False):
        value = " " + (parameter.metavar or value_form(parameter))
    return " / ".join(
        f"`{option}{cell(value)}`" for option in (*parameter.opts, *parameter.secondary_opts)
    )


def value_form(parameter: Any) -> str:
    """The type as one word: `N`, `X`, `PATH`, `TEXT`, or the choices."""
    annotation = parameter.type_descriptor.annotation
    choices = getattr(annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    name = getattr(annotation, "__name__", str(annotation))
    return {"int": "N", "float": "X", "Path": "PATH"}.get(name, "TEXT")


def meaning(parameter: Any) -> str:
    notes = []
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None:
        notes.append(f"at least {low:,}")
    if high is not None and high < 2**62:
        notes.append(f"at most {high:,}")
    default = parameter.default
    is_flag = getattr(parameter, "is_flag", False)
    has_value = isinstance(default, str | int | float) and default not in ("", False)
    if parameter.show_default and has_value and not is_flag:
        notes.append(f"default `{default}`")
    if parameter.required:
        notes.append("required")
    return plain(parameter.help or "") + (f" ({', '.join(notes)})" if notes else "")


def plain(text: str) -> str:
    return " ".join((text or "").split())


def cell(text: str) -> str:
    """Text in a cell of a table; outside of code nothing in it is markup."""
    parts = text.replace("|", "\\|").split("`")
    for number in range(0, len(parts), 2):
        parts[number] = escape(parts[number])
    return "`".join(parts)


def escape(text: str) -> str:
    for character in "*_<>[]$":
        text = text.replace(character, f"\\{character}")
    return text


# --- settings -------------------------------------------------------------------------------------


def settings_page() -> Iterator[str]:
    yield "# Settings\n"
    yield (
        "Every setting of a TOML file, for `--set KEY=VALUE` and `--vary KEY=A,B`, read off the tables that "
        "check them. On the command line: `regard settings`, `regard settings KEY`.\n"
    )

    def table(setting: Setting) -> str:
        return setting.key.partition(".")[0] if "." in setting.key else ""

    settings = list_settings()
    tables = sorted({table(s) for s in settings}, key=[table(s) for s in settings].index)
    for name in tables:
        yield f"## {f'[{name}]' if name else 'Outside of the tables'}\n"
        yield "| setting | default | type | meaning |\n|---|---|---|---|"
        for setting in (s for s in settings if table(s) == name):
            yield describe_setting(setting)
        yield ""


def describe_setting(setting: Setting) -> str:
    if setting.required:
        default = "(required)"
    elif setting.default is None:
        default = "(not set)"
    else:
        default = f"`{format_default(setting.default)}`"
    about = [escape(setting.meaning)] if setting.meaning else []
    about += [f"`{name}`: {escape(text)}" for name, text in setting.choices]
    if setting.kinds:
        listed = (f"`{key}` is {', '.join(names)}" for key, names in setting.kinds.items())
        about.append(f"*If {' and '.join(listed)}.*")
    key = setting.key.replace(".", ".<wbr>")  # where a narrow column may break
    name = f'<code class="docutils literal">{key}</code>'
    cells = (name, default, escape(setting.type), "<br>".join(about))
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"


# --- labs -----------------------------------------------------------------------------------------


def labs_page() -> Iterator[str]:
    yield "# All labs\n"
    yield (
        f"The {len(LABS)} labs, from the lab objects `regard.labs.LABS`: claim, exercise, parameters. "
        "What each of them measures and draws: [report](labs/labs.md).\n"
    )
    for name, lab in LABS.items():
        yield (
            f"## {name}\n\n**{escape(lab.claim)}.**\n"
            if lab.claim[-1] != "."
            else (f"## {name}\n\n**{escape(lab.claim)}**\n")
        )
        absent = " ".join(f"--set {key}={value}" for key, value in lab.absent.items())
        time = "trains or times models; `--quick` is shorter" if lab.quick else "takes seconds"
        yield f"- Run: `regard lab {name}` ({time})"
        yield f"- The effect is absent with: `regard lab {name} {absent}`"
        yield (
            f"- Exercise: implement `{lab.exercise.function}` "
            f"(`regard lab {name} --worksheet answers`)\n"
        )
        parameters = list(describe_parameters(lab))
        if parameters:
            yield "| parameter | default | range | description |\n|---|---|---|---|"
            for parameter in parameters:
                values = (cell(str(value)) for value in list(parameter.values())[1:])
                yield f"| `{parameter['name']}` | {' | '.join(values)} |"
            yield ""


LIVE_LABS = """# Live labs

Move a slider: the plot, the checks and the table are those that were measured with these values when
this page was built (seed 0). The command below the plot repeats the measurement.

<!-- site: live-labs copying averaging noisy-keys polynomial rotary nope -->

`regard export --to page --labs --out labs.html` writes such a page with every lab that trains nothing, and
`regard serve` one that measures at any values.
"""


# --- the Python API -------------------------------------------------------------------------------


def api_page(name: str) -> str:
    """A page for autodoc: the docstring of a module, and all that it names as public."""
    module = import_module(name)
    names = getattr(module, "__all__", None) or [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == name
    ]
    members = ", ".join(n for n in names if not n.startswith("__"))
    return (
        f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n"
        f"   :members: {members}\n   :imported-members:\n```\n"
    )
