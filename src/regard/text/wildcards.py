"""File names with wildcards: `train-*.de.gz` stands for every file that fits, in sorted order."""

import glob
import os
import re
from pathlib import Path

from regard import files
from regard.errors import UserError


def has_wildcard(name: str) -> bool:
    """Whether a name stands for several files: a file that is called so is itself."""
    return bool(re.search(r"[*?]", name)) and not files.local_path(Path(name)).exists()


def expand(name: str | Path) -> list[str]:
    """The files that a name stands for, sorted; the name itself if it has no wildcard."""
    name = str(name)
    if not has_wildcard(name):
        return [name]
    fits, here = compile_pattern(name), glob.iglob(name.replace("[", "[[]"))
    found = sorted({each for each in (*here, *files.located_names()) if fits.fullmatch(each)})
    if not found:
        raise UserError(
            f"no file fits {name}: * stands for any characters in a name, and ? for one"
        )
    return found


def pair_files(source: str | Path, target: str | Path) -> list[tuple[str, str]]:
    """Each source file with its target file: the one for which the wildcards stand for the same.

    If one side has more wildcards than the other, the files are paired in sorted order.
    """
    sides = by_wildcards(str(source)), by_wildcards(str(target))
    if len({len(parts) for side in sides for parts in side}) > 1:
        sides = number_files(sides[0]), number_files(sides[1])
    sources, targets = sides
    lonely = [sources.get(parts) or targets[parts] for parts in sources.keys() ^ targets.keys()]
    if lonely:
        raise UserError(
            f"{len(sources)} files fit {source} and {len(targets)} fit {target}, and {min(lonely)} has no "
            "partner: each source file needs its target file"
        )
    return [(name, targets[parts]) for parts, name in sources.items()]


def by_wildcards(name: str) -> dict[tuple[str, ...], str]:
    """Each file that fits, under what the wildcards stand for; under () without wildcards."""
    if not has_wildcard(name):
        return {(): name}
    fits = compile_pattern(name)
    return {match.groups(): match.string for match in map(fits.fullmatch, expand(name)) if match}


def number_files(side: dict[tuple[str, ...], str]) -> dict[tuple[str, ...], str]:
    return {(str(number),): name for number, name in enumerate(side.values())}


def compile_pattern(pattern: str) -> re.Pattern[str]:
    separator = re.escape(os.sep)
    parts = {"*": f"([^{separator}]*)", "?": f"([^{separator}])"}
    return re.compile("".join(parts.get(letter, re.escape(letter)) for letter in pattern))
