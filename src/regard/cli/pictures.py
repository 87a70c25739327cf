"""`regard diagram`: attention weights as pictures."""

from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import files, shipped
from regard.cli.common import (
    Device,
    Interventions,
    Overwrite,
    Run,
    app,
    check_new,
    echo,
    find_data,
    load_translator,
    parse_interventions,
)
from regard.config import limits
from regard.errors import UserError

# Formats of pictures that regard does not write: a folder of such a name would be a surprise.
OTHER_SUFFIXES = (".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".eps", ".ps", ".htm")


@app.command()
def diagram(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to translate and draw.", show_default=False),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="A file with one text per line, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Draw sentences of this split of the data.", show_default=False),
    ] = None,
    first: Annotated[
        int,
        typer.Option(
            min=1,
            max=limits.PICTURES,
            help="With --split: the number of sentences.",
        ),
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .png, .svg, .pdf or .html file, attention.png by default; of several texts "
            "NAME-1.png, NAME-2.png, .. Or a folder for several pictures and their index.html.",
            show_default=False,
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            help="Also write word alignments (Pharaoh format), one line per text.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.LAYERS,
            help="Draw only this layer (1-based). In an ensemble, the layers of the second run follow those "
            "of the first.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            min=1, max=limits.HEADS, help="Draw only this head (1-based).", show_default=False
        ),
    ] = None,
    mechanism: Annotated[
        Literal["cross", "encoder", "decoder"], typer.Option(help="Attention mechanism to draw.")
    ] = "cross",
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Colour theme.")] = "light",
    intervene: Interventions = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
) -> None:
    """Draw the attention weights of a translation."""
    from regard.text.lines import read_lines

    sources = [*(texts or []), *(read_lines(input_) if input_ else [])]
    if not sources and not split:
        raise UserError("nothing to draw: give a text in quotes, --input FILE, or --split test")
    from regard.diagrams.drawing import check_suffix

    is_single = len(sources) == 1 and not split and not input_
    path = out or next_free(Path("attention.png" if is_single else "attention"))
    if is_single or path.suffix.lower() in OTHER_SUFFIXES:
        check_suffix(path)
    check_new([alignments] if alignments else [], overwrite)
    if not split:  # else the number of texts is not known yet
        check_new(list_pictures(path, len(sources), is_single), overwrite)
    interventions = parse_interventions(intervene)
    translator = load_translator(run, device)

    from regard.diagrams.gallery import Item, pharaoh_alignment, write_gallery
    from regard.diagrams.mechanisms import list_mechanisms, select_mechanism
    from regard.text import corpus

    references: list[str | None] = [None] * len(sources)
    if split:
        pairs = corpus.load_split(find_data(run), split, raw=True)[:first]
        sources += [source for source, _ in pairs]
        references += [target for _, target in pairs]
        check_new(list_pictures(path, len(sources), is_single), overwrite)
    outputs = translator.translate(sources, interventions=interventions)
    items = [
        Item(text, output.text, output.source, output.target, output.attention, reference)
        for text, output, reference in zip(sources, outputs, references, strict=True)
    ]
    chosen = [
        select_mechanism(list_mechanisms(item.attention, item.source, item.target), mechanism)
        for item in items
    ]
    options: dict[str, Any] = {
        "mechanism": mechanism,
        "layer": layer,
        "head": head,
        "theme": theme,
    }
    if is_picture(path):
        draw_pictures(list_pictures(path, len(items), is_single), items, options)
    else:
        title = f"{shipped.name_of(run)}: {chosen[0].label}"
        echo(write_gallery(path, items, title=title, **options))
    if alignments:
        lines = [pharaoh_alignment(one.weights, one.keys, one.queries) + "\n" for one in chosen]
        files.write(alignments, "".join(lines))
        echo(alignments)


def is_picture(path: Path) -> bool:
    """Whether pictures go to files of this name; otherwise it is the folder of a gallery."""
    from regard.diagrams.drawing import SUFFIXES

    return path.suffix.lower() in SUFFIXES


def list_pictures(path: Path, number: int, is_single: bool) -> list[Path]:
    """The files to write: one picture, or NAME-1.png, NAME-2.png, .., or those of a gallery."""
    if not is_picture(path):
        pictures = [path / f"{index:04}.png" for index in range(1, number + 1)]
        return [path / "index.html", *pictures]
    if is_single:
        return [path]
    return [path.with_stem(f"{path.stem}-{index}") for index in range(1, number + 1)]


def next_free(path: Path) -> Path:
    """The default name if nothing has it, else the first free of NAME-2, NAME-3, .."""
    names = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(name for name in chain([path], names) if not name.exists())


def draw_pictures(paths: Sequence[Path], items: Sequence[Any], options: dict[str, Any]) -> None:
    """Draw one picture per translation; print the translation and the path."""
    from regard.diagrams import draw
    from regard.escaping import one_line

    for path, item in zip(paths, items, strict=True):
        draw(path, item.attention, item.source, item.target, title=item.text, **options)
        echo(one_line(item.output))
        echo(path)
