"""Runs and labs as one HTML file that opens in a browser, and runs the models there: see `regard.page`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regard import shipped
from regard.display import Display
from regard.errors import UserError
from regard.loading import load
from regard.page.build import Pack, build
from regard.page.pack import pack
from regard.terminal import Console

LINE_EVERY = 30  # settings


def export_page(
    runs: Sequence[Path],
    out: Path,
    float32: bool = False,
    labs: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Write the file; the record says its size and what is inside."""
    if float32 and not runs:
        raise UserError("--float32 is about the weights of a run, and there is none: leave it out")
    names = list(distinct_names(runs))
    packs = [Pack(*pack(load(run), name, float32)) for run, name in zip(runs, names, strict=True)]
    measured = measure(console or Console(quiet=True)) if labs else None
    title = " and ".join([*names, *["labs"] * labs])
    return {
        "models": names,
        "bytes": build(packs, out, title=f"{title} · Regard", labs=measured),
        "weights": ("float32" if float32 else "int8") if runs else None,
        "labs": [lab["name"] for lab in measured["labs"]] if measured else [],
        "settings": sum(len(lab["points"]) for lab in measured["labs"]) if measured else 0,
    }


def measure(console: Console) -> dict[str, Any]:
    """Every quick lab, over its settings, with a progress bar; elsewhere a line now and then."""
    from regard.page.labs import measure_labs, quick_labs  # matplotlib takes a while to import

    with Display(console) as display:

        def report(done: int, total: int, lab: str) -> None:
            display.update(done / total, f"setting {done + 1} of {total}: {lab}")
            if display.bar is None and done % LINE_EVERY == 0:
                parts = [f"labs: {done} of {total} settings measured", display.time_left]
                display.print(", ".join(filter(None, parts)))

        return measure_labs(quick_labs(), report)


def distinct_names(runs: Sequence[Path]) -> Iterator[str]:
    """The name of each run's folder; the second of the same name becomes `name (2)`."""
    names = [shipped.name_of(run) for run in runs]
    for number, name in enumerate(names):
        earlier = names[:number].count(name)
        yield f"{name} ({earlier + 1})" if earlier else name
