"""The notebooks of examples/, executed from the first cell to the last, with pictures for both themes."""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

THEMES = ("light", "dark")
THEME = re.compile(r'^THEME = "\w+"', re.MULTILINE)  # a line of the set-up cell
SECONDS = 600  # the most that a cell may take
Cells = list[dict[str, Any]]


def execute(path: Path, theme: str, out: Path) -> None:
    """Write the notebook with the outputs of its cells; an error in a cell is an error here."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = THEME.sub(f'THEME = "{theme}"', cell.source)
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],
        ).execute()
    out.write_text(nbformat.writes(notebook), "utf-8")


def outputs_in_themes(
    run: Callable[[str], bytes], save: Callable[[str, str, bytes], str]
) -> list[Cells]:
    """The outputs of each cell, from `run(theme)`, an executed notebook; texts are those of the light one.

    A picture becomes two, of which the theme of the site shows one; `save(name, theme, data)` returns where
    it is. What a cell wrote to standard error, as progress, is left out.
    """
    with ThreadPoolExecutor(len(THEMES)) as pool:
        notebooks = [json.loads(text)["cells"] for text in pool.map(run, THEMES)]
    return [
        [
            in_themes(versions, f"{number}-{index}", save)
            for index, versions in enumerate(zip(*outputs, strict=True))
            if versions[0].get("name") != "stderr"
        ]
        for number, outputs in enumerate(zip(*map(list_outputs, notebooks), strict=True))
    ]


def list_outputs(cells: Cells) -> list[Cells]:
    """The outputs of each cell, with the pieces of one stream joined."""
    return [join_streams(cell.get("outputs", [])) for cell in cells]


def join_streams(outputs: Cells) -> Cells:
    streams: dict[str, dict[str, Any]] = {}
    joined: Cells = []
    for output in outputs:
        name = output.get("name")
        if name in streams:
            streams[name]["text"] += "".join(output["text"])
            continue
        joined.append(output)
        if name is not None:
            streams[name] = output
            output["text"] = "".join(output["text"])
    return joined


def in_themes(
    versions: tuple[dict[str, Any], ...], name: str, save: Callable[[str, str, bytes], str]
) -> dict[str, Any]:
    """One output of a cell, from the same output in each theme."""
    first = versions[0]
    if "image/png" not in first.get("data", {}):
        return first
    width = first["metadata"].get("image/png", {}).get("width", 560)
    images = []
    for theme, version in zip(THEMES, versions, strict=True):
        source = save(name, theme, b64decode("".join(version["data"]["image/png"])))
        images.append(
            f'<img class="only-{theme}" src="{source}" alt="picture drawn by the cell above" '
            f'style="max-width: min(100%, {width}px)" loading="lazy">'
        )
    html = f'<div class="made">{"".join(images)}</div>'
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}
