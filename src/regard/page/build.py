"""One HTML file that runs models in a browser: view, engine and weights inside, no request to anywhere.

Modules import each other only by `import {a} from "./b.js";`, and no name is defined twice: so a folder
becomes one script, its files one after the other, without those lines. `ui` is the view; what the engine
needs too is in `engine`, and imported from "../engine/b.js". `served` is what the page of `regard serve` has
beside `ui`.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from regard import __version__, documents, files
from regard.diagrams.themes import THEMES, Theme

FOLDER = resources.files("regard.page")
IMPORT = re.compile(r'^import \{[^}]*\} from "\.(?:\./(engine|ui))?/([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)


class Pack(NamedTuple):
    """A model, from `regard.page.pack`: what its engine needs to know, and its tensors."""

    manifest: Mapping[str, Any]
    weights: bytes


def build(
    packs: Sequence[Pack],
    out: Path,
    *,
    title: str | None = None,
    labs: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> int:
    """Write the page to `out`; returns its size in bytes. `engine`: another one, for tests of the view."""
    page = render(packs, title=title, labs=labs, engine=engine).encode("utf-8")
    files.write(out, page)
    return len(page)


def render(
    packs: Sequence[Pack],
    *,
    title: str | None = None,
    labs: Mapping[str, Any] | None = None,
    translations: Sequence[Mapping[str, Any]] | None = None,
    server: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> str:
    """The page, as HTML: models, labs (from `regard.page.labs`), or both in two tabs.

    Or, instead of models, `translations` (from `regard.page.notebook`) to look at, or a `server` to ask:
    {"api": "/api"}.
    """
    styles = [FOLDER / "ui" / "style.css", *([FOLDER / "served" / "served.css"] if server else [])]
    style = "\n".join([style_variables(), *map(read, styles)])
    script = bundle(*((FOLDER / "served", "main.js") if server else (FOLDER / "ui", "app.js")))
    if engine is None and packs:
        engine = bundle(FOLDER / "engine", "worker.js")
    data = {
        "engine": engine,
        "themes": {name: describe_theme(theme) for name, theme in THEMES.items()},
        "models": [pack.manifest for pack in packs],
        "labs": labs,
        "translations": translations,
        "server": server,
    }
    parts = {
        "policy": content_security_policy(script, style, bool(server)),
        "title": escape_html(title or "Regard"),
        "version": escape_html(__version__),
        "style": style,
        "data": "\n".join(
            json_element(name, value) for name, value in data.items() if value is not None
        ),
        "weights": "\n".join(
            f'<script type="application/octet-stream;base64" id="weights-{number}">'
            f"{base64.b64encode(pack.weights).decode('ascii')}</script>"
            for number, pack in enumerate(packs)
        ),
        "script": script,
    }
    template = read(FOLDER / "ui" / "index.html")
    # A single pass: a placeholder inside a part is not substituted.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def bundle(folder: Traversable, entry: str) -> str:
    """One script from `entry` and the modules that it imports, each once, after those that it needs."""
    sources: dict[str, str] = {}

    def add(folder: Traversable, name: str) -> None:
        text = read(folder / name)
        for other, needed in IMPORT.findall(text):
            if needed not in sources:
                add(FOLDER / other if other else folder, needed)
        sources[name] = EXPORT.sub("", IMPORT.sub("", text))

    add(folder, entry)
    code = "\n".join(sources.values())
    return f'(() => {{\n"use strict";\n{code}}})();\n'


def content_security_policy(script: str, style: str, has_server: bool = False) -> str:
    """Only this script and this style, workers and pictures made by the page itself, and no request but to
    its own server.
    """
    connect = "connect-src 'self'; " if has_server else ""
    return (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; "
        f"worker-src blob:; img-src data: blob:; {connect}"
        "base-uri 'none'; form-action 'none'"
    )


def read_policy(page: str) -> str:
    """The content-security policy of a page, for a server's header."""
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[:1]
    return policy


def source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def json_element(name: str, value: Any) -> str:
    """A script element with data. Only "<" could end it, or open a comment."""
    text = documents.dumps(value, separators=(",", ":"), ensure_ascii=True).replace("<", r"\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def describe_theme(theme: Theme) -> dict[str, Any]:
    """The colours that the pictures need, on the page and when saved."""
    names = ("background", "text", "sequential", "series")
    return {name: getattr(theme, name) for name in names} | {"quiet": theme.series[7]}


def style_variables() -> str:
    """The colours of both themes, by the attribute `data-theme` of the document."""
    rules = (
        f':root[data-theme="{name}"] {{ color-scheme: {name}; --background: {theme.background}; '
        f"--text: {theme.text}; --quiet: {theme.series[7]}; --accent: {theme.series[0]}; "
        f"--changed: {theme.series[1]}; --good: {theme.series[2]}; "
        f"--surface: {theme.text}0c; --border: {theme.text}28; }}"
        for name, theme in THEMES.items()
    )
    return "\n".join(rules)


def escape_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def read(path: Traversable) -> str:
    return path.read_text("utf-8")
