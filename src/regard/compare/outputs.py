"""A Markdown page of side-by-side outputs: every system's translation of the same sentences."""

from collections.abc import Mapping, Sequence

from regard.escaping import escape_markdown

SAMPLE_SIZE = 12


def sample_by_length(sources: Sequence[str], count: int = SAMPLE_SIZE) -> list[int]:
    """Sort sentences by source length (a stable sort), cut into `count` equal parts, take each middle."""
    by_length = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    count = min(count, len(sources))
    return [by_length[(2 * part + 1) * len(sources) // (2 * count)] for part in range(count)]


def format_outputs(
    pairs: Sequence[tuple[str, str]],
    outputs: Mapping[str, Sequence[str]],
    split: str,
    other_systems: Sequence[str] = (),
) -> str:
    """One Markdown table per sampled sentence: source, reference and every system's output.

    `other_systems` were evaluated on other sentences and are only listed.
    """
    rows = sample_by_length([source for source, _ in pairs])
    page = [
        "# Outputs side by side\n",
        f"{len(rows)} of the {len(pairs):,} sentences of the {split} split, selected by length only: "
        f"sorted by source length in characters, cut into {len(rows)} equal parts, the middle sentence "
        "of each part. Outputs are those of each system's first seed.",
    ]
    if other_systems:
        names = "; ".join(map(escape_markdown, other_systems))
        page.append(f"\nNot shown, because they were evaluated on other sentences: {names}.")
    for row in rows:
        source, reference = pairs[row]
        lines = {"*source*": source, "*reference*": reference}
        lines |= {escape_markdown(label): texts[row] for label, texts in outputs.items()}
        page.append(f"\n## Sentence {row + 1:,} ({len(source)} characters)\n\n| | |\n|---|---|")
        page += [f"| {name} | {escape_markdown(text)} |" for name, text in lines.items()]
    return "\n".join(page) + "\n"
