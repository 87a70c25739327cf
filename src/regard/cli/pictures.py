"""`regard diagram`: attention weights as pictures."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import files
from regard.cli.common import Device, Run, app, load_translator, read_lines
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
    first: Annotated[int, typer.Option(help="With --split: the number of sentences.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="One text: a .png, .svg or .html file, attention.png by default. Several: a folder for "
            "the pictures and their index.html.",
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
        int | None, typer.Option(help="Draw only this layer (1-based).", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Draw only this head (1-based).", show_default=False)
    ] = None,
    mechanism: Annotated[
        Literal["cross", "encoder", "decoder"], typer.Option(help="Attention mechanism to draw.")
    ] = "cross",
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Colour theme.")] = "light",
    device: Device = "auto",
) -> None:
    """Draw the attention weights of a translation."""
    sources = [*(texts or []), *(read_lines(input_) if input_ else [])]
    if not sources and not split:
        raise UserError("nothing to draw: give a text in quotes, --input FILE, or --split test")
    if first < 1:
        raise UserError(f"--first is 1 or more, not {first}")
    translator = load_translator(run, device)

    from regard.diagrams import draw
    from regard.diagrams.gallery import pharaoh_alignment, write_gallery
    from regard.text import corpus

    references: list[str | None] = [None] * len(sources)
    if split:
        pairs = corpus.load_split(translator.config.data, split)[:first]
        sources += [source for source, _ in pairs]
        references += [target for _, target in pairs]
    items = [
        make_item(text, output, reference, mechanism)
        for text, output, reference in zip(
            sources, translator.translate(sources), references, strict=True
        )
    ]
    options: dict[str, Any] = {"layer": layer, "head": head, "theme": theme}
    if len(items) == 1 and not split and not input_:
        path = out or Path("attention.png")
        draw(path, items[0].weights, items[0].source, items[0].target, **options)
        typer.echo(items[0].output)
    else:
        path = write_gallery(
            out or Path("attention"), items, title=f"{run.name}: {mechanism} attention", **options
        )
    typer.echo(path)
    if alignments:
        lines = [pharaoh_alignment(item.weights, item.source, item.target) + "\n" for item in items]
        files.write(alignments, "".join(lines))
        typer.echo(alignments)


NO_ATTENTION = (
    "it has no attention at all, only a state of fixed size; to draw attention weights, train a model "
    "with attention"
)


def make_item(text: str, output: Any, reference: str | None, mechanism: str) -> Any:
    """The weights of one attention mechanism, with the tokens of its keys and queries."""
    from regard.diagrams.gallery import Item

    attention = output.attention
    if mechanism not in attention:
        available = f"it has {', '.join(attention)}" if attention else NO_ATTENTION
        raise UserError(f'this model has no "{mechanism}" attention: {available}')
    decoder_input = ["<begin>", *output.target[:-1]]  # the target shifted right
    queries = output.source if mechanism == "encoder" else output.target
    keys = decoder_input if mechanism == "decoder" else output.source
    return Item(text, output.text, keys, queries, attention[mechanism], reference)
