"""`regard diagram`: where a model looks."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import files
from regard.cli.common import Device, Run, app, lines_of, load
from regard.errors import UserError


@app.command()
def diagram(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to translate and draw.", show_default=False),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", help="A file with one text a line, or -.", show_default=False),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Draw sentences of this split of the data.", show_default=False),
    ] = None,
    first: Annotated[int, typer.Option(help="With --split: how many sentences.")] = 20,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="One text: .png, .svg or .html [default: attention.png]. Several: a folder for the "
            "pictures and their index.html.",
            show_default=False,
        ),
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            help="Also write word alignments (Pharaoh format), a line a text.", show_default=False
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Draw this layer alone (from 1).", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Draw this head alone (from 1).", show_default=False)
    ] = None,
    mechanism: Annotated[
        Literal["cross", "encoder", "decoder"], typer.Option(help="Which attention.")
    ] = "cross",
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Light or dark.")] = "light",
    device: Device = "auto",
) -> None:
    """Draw where a model looks while it translates."""
    asked = [*(texts or []), *(lines_of(input_) if input_ else [])]
    if not asked and not split:
        raise UserError("nothing to draw: give a text in quotes, --input FILE, or --split test")
    if first < 1:
        raise UserError(f"--first is 1 or more, not {first}")
    translator = load(run, device)

    from regard.diagrams import draw
    from regard.diagrams.gallery import gallery, pharaoh
    from regard.text import corpus

    references: list[str | None] = [None] * len(asked)
    if split:
        pairs = corpus.load(translator.config.data)[split][:first]
        asked += [source for source, _ in pairs]
        references += [target for _, target in pairs]
    items = [
        item(text, output, reference, mechanism)
        for text, output, reference in zip(
            asked, translator.translate(asked), references, strict=True
        )
    ]
    looks: dict[str, Any] = {"layer": layer, "head": head, "theme": theme}
    if len(items) == 1 and not split and not input_:
        place = to or Path("attention.png")
        draw(place, items[0].weights, items[0].source, items[0].target, **looks)
        typer.echo(items[0].output)
    else:
        place = gallery(
            to or Path("attention"), items, title=f"{run.name}: {mechanism} attention", **looks
        )
    typer.echo(place)
    if alignments:
        lines = [pharaoh(one.weights, one.source, one.target) + "\n" for one in items]
        files.write(alignments, "".join(lines))
        typer.echo(alignments)


NOWHERE = (
    "it has none at all, only a state of fixed size that it reads into; to see a model look, train "
    "one with attention"
)


def item(text: str, output: Any, reference: str | None, mechanism: str) -> Any:
    """One mechanism of a translation, with the tokens on its two sides."""
    from regard.diagrams.gallery import Item

    found = output.attention
    if mechanism not in found:
        has = f"it has {', '.join(found)}" if found else NOWHERE
        raise UserError(f'this model has no "{mechanism}" attention: {has}')
    read = ["<begin>", *output.target[:-1]]  # what the decoder had before it at each place
    rows = output.source if mechanism == "encoder" else output.target
    columns = read if mechanism == "decoder" else output.source
    return Item(text, output.text, columns, rows, found[mechanism], reference)
