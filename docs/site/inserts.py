"""What a line `<!-- site: WORDS -->` of a page stands for. On GitHub such a line is invisible.

picture regard diagram ...   the picture that a command draws, in light and dark colours
draw KIND NAME               one of `docs.site.pictures`
open regard ...              the HTML file that a command writes, in a frame
live-labs NAME ...           these labs with their sliders, in a frame
code MODULE:NAME             the source of a class or function of the library
results NAME                 the table of results/NAME
settings TABLE               the settings of a table of the config
"""

import hashlib
import inspect
import posixpath
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from html import escape
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from docs.site import notebooks, pictures
from docs.site.notebooks import THEMES
from regard import cli
from regard.labs import LABS
from regard.page.build import build
from regard.page.labs import measure_labs

if TYPE_CHECKING:
    from docs.site.stage import Stage

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "site-cache"


def insert(stage: "Stage", words: str, page: str) -> str:
    """Markdown in the place of the comment."""
    kind, _, rest = words.partition(" ")
    if kind not in INSERTS:
        raise SystemExit(f"{page}: unknown insert {kind!r}: {', '.join(INSERTS)}")
    return INSERTS[kind](stage, rest, page)


# --- pictures and pages that are made -------------------------------------------------------------


def picture(stage: "Stage", command: str, page: str) -> str:
    def draw(theme: str) -> bytes:
        return made_by(f"{command} --theme {theme}", ".png")

    return figure(stage, draw, command, f"`{command} --out FILE.png`", page)


def drawn(stage: "Stage", words: str, page: str) -> str:
    def draw(theme: str) -> bytes:
        return made_by(f"picture {words} --theme {theme}", ".png")

    return figure(stage, draw, words, f"`python -m docs.site.pictures {words}`", page)


def figure(stage: "Stage", draw: Callable[[str], bytes], alt: str, caption: str, page: str) -> str:
    """Both pictures, of which the theme shows one, with the command below; in a quick build none."""
    stage.figures += 1
    if stage.quick:
        return caption
    images = []
    for theme in THEMES:
        data = draw(theme)
        path = f"made/{hashlib.sha256(alt.encode()).hexdigest()[:12]}-{theme}.png"
        stage.write(f"_extra/{path}", data)
        source = posixpath.relpath(path, posixpath.dirname(page) or ".")
        images.append(
            f'<img class="only-{theme}" src="{source}" alt="{escape(alt)}" loading="lazy">'
        )
    return f'<div class="made">{"".join(images)}</div>\n\nDrawn by {caption}.\n'


def frame(stage: "Stage", command: str, page: str) -> str:
    stage.figures += 1
    if stage.quick:
        return f"`{command} --out FILE.html`"
    return embed(stage, made_by(command, ".html"), command, f"`{command} --out FILE.html`", page)


def live_labs(stage: "Stage", names: str, page: str) -> str:
    stage.figures += 1
    caption = f"the engine of `regard export --to page --labs`, for the labs {names}"
    if stage.quick:
        return caption
    data = made_by(f"labs {names}", ".html")
    return embed(stage, data, f"Labs: {names}", caption, page, height=900)


def embed(
    stage: "Stage", data: bytes, title: str, caption: str, page: str, height: int = 620
) -> str:
    path = f"made/{hashlib.sha256(title.encode()).hexdigest()[:12]}.html"
    stage.write(f"_extra/{path}", data)
    source = posixpath.relpath(path, posixpath.dirname(page) or ".")
    size = f"{len(data) / 1e6:.1f} MB"
    return (
        f'<iframe class="live" src="{source}" title="{escape(title)}" height="{height}" '
        f'loading="lazy"></iframe>\n\nMade by {caption} ({size}; '
        f'<a href="{source}">open it alone</a>).\n'
    )


def notebook_outputs(stage: "Stage", path: str, page: str) -> list[notebooks.Cells]:
    """What the cells of a notebook printed and drew."""
    text = (ROOT / path).read_bytes()
    key = hashlib.sha256(text).hexdigest()[:12]

    def save(name: str, theme: str, data: bytes) -> str:
        stage.figures += theme == THEMES[0]
        target = f"made/{key}-{name}-{theme}.png"
        stage.write(f"_extra/{target}", data)
        return posixpath.relpath(target, posixpath.dirname(page))

    def run(theme: str) -> bytes:
        return made_by(f"notebook {path} {key} --theme {theme}", ".ipynb")

    return notebooks.outputs_in_themes(run, save)


def made_by(command: str, suffix: str) -> bytes:
    """The file that `command --out FILE` writes; kept until the code, or the command, changes."""
    key = hashlib.sha256(f"{command}\n{code_checksum()}".encode()).hexdigest()[:16]
    path = CACHE / f"{key}{suffix}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        program, *words = shlex.split(command)
        PROGRAMS[program](*words, "--out", str(path))
    return path.read_bytes()


def regard(*words: str) -> None:
    """The command, in this process: PyTorch is imported once for all pictures."""
    with mock.patch.object(sys, "argv", ["regard", *words]), redirect_stdout(StringIO()):
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise SystemExit(f"regard {shlex.join(words)}: exit code {end.code}") from None


def site_picture(kind: str, name: str, *options: str) -> None:
    given = dict(zip(options[::2], options[1::2], strict=True))
    pictures.draw(kind, name, Path(given["--out"]), given["--theme"])


def site_labs(*words: str) -> None:
    *names, _, out = words
    labs = [LABS[name] for name in names]
    build([], Path(out), title="Labs", labs=measure_labs(labs))


def site_notebook(path: str, checksum: str, _: str, theme: str, __: str, out: str) -> None:
    notebooks.execute(ROOT / path, theme, Path(out))


PROGRAMS: dict[str, Callable[..., None]] = {
    "regard": regard,
    "picture": site_picture,
    "labs": site_labs,
    "notebook": site_notebook,
}


@cache
def code_checksum() -> str:
    """Of all that a picture may depend on."""
    digest = hashlib.sha256()
    for folder in (ROOT / "src", ROOT / "docs" / "site"):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".js", ".css")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


# --- text -----------------------------------------------------------------------------------------


def code(stage: "Stage", name: str, page: str) -> str:
    module, _, member = name.partition(":")
    target = import_module(module)
    for part in member.split("."):
        target = getattr(target, part)
    source = textwrap.dedent(inspect.getsource(target)).rstrip()
    return f"```python\n{source}\n```\n\n`{name}`\n"


def results(stage: "Stage", name: str, page: str) -> str:
    text = (ROOT / "results" / name / "table.md").read_text("utf-8")
    [table] = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    path = posixpath.relpath(f"results/{name}/table.md", posixpath.dirname(page) or ".")
    return f"{table}\nFrom [results/{name}]({path}).\n"


def settings(stage: "Stage", table: str, page: str) -> str:
    from docs.site.reference import describe_setting
    from regard.config.reference import find_settings

    rows = "\n".join(describe_setting(setting) for setting in find_settings(table))
    return f"| setting | default | type | meaning |\n|---|---|---|---|\n{rows}\n"


INSERTS: dict[str, Callable[["Stage", str, str], str]] = {
    "picture": picture,
    "draw": drawn,
    "open": frame,
    "live-labs": live_labs,
    "code": code,
    "results": results,
    "settings": settings,
}
