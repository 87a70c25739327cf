"""Runs as one HTML file that opens in a browser and runs them there: see `regard.page`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.page.build import Pack, build
from regard.page.pack import pack
from regard.translator import load


def export_page(runs: Sequence[Path], out: Path, float32: bool = False) -> dict[str, Any]:
    """Write the file; the record says its size and which models are inside."""
    names = list(distinct_names(runs))
    packs = [Pack(*pack(load(run), name, float32)) for run, name in zip(runs, names, strict=True)]
    return {
        "models": names,
        "bytes": build(packs, out, title=f"{' and '.join(names)} · Regard"),
        "weights": "float32" if float32 else "int8",
    }


def distinct_names(runs: Sequence[Path]) -> Iterator[str]:
    """The name of each run's folder; the second of the same name becomes `name (2)`."""
    names = [Path(str(run).rpartition(":")[2]).name or "model" for run in runs]
    for number, name in enumerate(names):
        earlier = names[:number].count(name)
        yield f"{name} ({earlier + 1})" if earlier else name
