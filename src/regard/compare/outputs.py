"""A page of side-by-side outputs: what each system says of the same sentences."""

import html
import re
from collections.abc import Mapping, Sequence

COUNT = 12


def spread(sources: Sequence[str], count: int = COUNT) -> list[int]:
    """The middles of `count` equal parts of the sentences, shortest source first; of equals, in order."""
    by_length = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    count = min(count, len(sources))
    return [by_length[(2 * part + 1) * len(sources) // (2 * count)] for part in range(count)]


def side_by_side(
    pairs: Sequence[tuple[str, str]],
    outputs: Mapping[str, Sequence[str]],
    split: str,
    elsewhere: Sequence[str] = (),
) -> str:
    """Markdown: a table for each sentence, with its source, its reference and every output.

    `elsewhere` are systems that were measured on other sentences.
    """
    rows = spread([source for source, _ in pairs])
    page = [
        "# Outputs side by side\n",
        f"{len(rows)} of the {len(pairs):,} sentences of the {split} split, chosen by length alone: "
        f"all in order of their source's length in characters, cut into {len(rows)} equal parts, the "
        "middle of each part. Every system speaks with its first seed.",
    ]
    if elsewhere:
        names = "; ".join(map(plain, elsewhere))
        page.append(f"\nNot here, since they were measured on other sentences: {names}.")
    for row in rows:
        source, reference = pairs[row]
        lines = {"*source*": source, "*reference*": reference}
        lines |= {plain(label): said[row] for label, said in outputs.items()}
        page.append(f"\n## Sentence {row + 1:,} ({len(source)} characters)\n\n| | |\n|---|---|")
        page += [f"| {name} | {plain(text)} |" for name, text in lines.items()]
    return "\n".join(page) + "\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it stands: `<U>` is no tag, a bar ends no cell."""
    text = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)
