"""Every kind of HTML page that Regard writes, with a given text wherever a user's text goes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from regard.diagrams import render_html
from regard.diagrams.gallery import Item, write_gallery
from regard.labs import LABS, report
from regard.page import build, notebook
from regard.translation import Translation

WEIGHTS = np.full((1, 2, 2, 2), 0.5, dtype="float32")


def write_diagram(text: str, folder: Path) -> Path:
    path = folder / "diagram.html"
    path.write_text(render_html(WEIGHTS, [text, "b"], [text, "d"], title=text), "utf-8")
    return path


def write_pictures(text: str, folder: Path) -> Path:
    item = Item(text, text, [text, "b"], [text, "d"], WEIGHTS, text)
    return write_gallery(folder, [item], title=text)


def write_labs(text: str, folder: Path) -> Path:
    lab = LABS["copying"]
    result = lab.run(0)
    columns = result.table.columns
    table = replace(result.table, columns=(text, *columns[1:]))
    checks = [replace(check, name=text) for check in result.law]
    changed = replace(result, table=table, notes=(text,), law=tuple(checks))
    path = folder / "labs.html"
    path.write_text(report.render_html([(lab, changed)]), "utf-8")
    for name in ("copying.png", "copying-dark.png"):
        (folder / name).write_bytes(PIXEL)
    return path


def write_translation(text: str, folder: Path) -> Path:
    weights = [{"cross": torch.tensor(WEIGHTS)}]
    translation = Translation(text, [text, "b"], [text, "d"], -1.0, -1.0, weights=weights)
    path = folder / "translation.html"
    path.write_text(notebook.render_translation(translation), "utf-8")
    return path


def write_server_page(text: str, folder: Path) -> Path:
    path = folder / "served.html"
    path.write_text(build.render([], title=text, server={"api": text}), "utf-8")
    return path


PAGES: dict[str, Callable[[str, Path], Path]] = {
    "diagram": write_diagram,
    "gallery": write_pictures,
    "labs": write_labs,
    "translation": write_translation,
    "server": write_server_page,
}
# A picture of one pixel.
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fcffff3f"
    "030005fe02fea735812f0000000049454e44ae426082"
)
