"""Hugging Face datasets: a folder, or hf:user/name on the hub. JSON lines, Parquet and Arrow files.

Which split a file belongs to is read from its path, as Hugging Face does:
`data/train-00000-of-00002.parquet` or `validation/data.jsonl`. A folder of `save_to_disk` is read, too.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from regard import config, files
from regard.errors import UserError, join_names, suggest
from regard.text.arrow import find_text, read_arrow, read_parquet
from regard.text.hub import Repository, is_hub_name
from regard.text.lines import open_binary
from regard.text.pairs import SPLITS, Pairs, split_pairs

# Words in a path that name a split, as in Hugging Face's documentation.
WORDS = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def read_jsonl(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    with TextIOWrapper(open_binary(path), "utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is not a JSON object")
                yield row


READERS: dict[str, Callable[[Path, list[str]], Iterator[dict[str, Any]]]] = {
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}


def load(data: config.HubData) -> tuple[dict[str, Pairs], list[str]]:
    """(pairs by split, messages). A dataset with only a training split is divided, as our own are."""
    folder, names = find_files(data)
    by_split = {split: [name for name in names if split_of(name) == split] for split in SPLITS}
    splits, messages = {}, []
    for split in SPLITS:
        if by_split[split]:
            splits[split], skipped = read_split(folder, by_split[split], data)
            messages += [f"{split}: skipped {skipped}"] if skipped else []
    if not splits.get("train"):
        raise UserError(
            f"{data.name} has no pairs for training: looked for files with one of "
            f"{join_names(READERS)} and the word train in their path"
        )
    if list(splits) == ["train"]:
        splits = split_pairs(splits["train"])
        counts = join_names(f"{len(pairs):,} {split}" for split, pairs in splits.items())
        messages.append(f"the dataset has only a training split: divided into {counts}")
    if not splits.get("val"):
        raise UserError(
            f"{data.name} has no validation split (it has {join_names(splits)}): name its files with the "
            'word validation, or use data.kind = "files"'
        )
    return splits, messages


def find_files(data: config.HubData) -> tuple[Path, list[str]]:
    """(folder, paths in it of all data files), downloaded if the name starts with hf:."""
    if is_hub_name(data.name):
        repository = Repository.parse(data.name, "datasets")
        listing = repository.listing()
        names = select(listing.blobs, data)
        return repository.fetch(listing, names), names
    folder = files.local_path(Path(data.name).expanduser())
    if not folder.is_dir():
        raise UserError(
            f"data.name: there is no folder {folder}. A dataset on the Hugging Face hub is hf:user/name"
        )
    paths = (path for path in folder.rglob("*") if path.is_file())
    return folder, select((path.relative_to(folder).as_posix() for path in paths), data)


def select(names: Iterable[str], data: config.HubData) -> list[str]:
    """The data files of the subset, in order."""
    prefix = f"{data.subset.strip('/')}/" if data.subset else ""
    suffixes = tuple(READERS)
    found = sorted(name for name in names if name.endswith(suffixes) and ".." not in name)
    # `map` and `filter` of the library leave intermediate results behind.
    found = [name for name in found if not Path(name).name.startswith("cache-")]
    inside = [name for name in found if name.startswith(prefix)]
    if found and not inside:
        folders = sorted({Path(name).parts[0] for name in found if "/" in name})
        raise UserError(
            f'data.subset: {data.name} has no folder "{data.subset}" with data.'
            f"{suggest(data.subset, folders)} It has {join_names(folders) or 'no folders'}"
        )
    return inside


def split_of(name: str) -> str | None:
    """The split that a path names: its file name first, then its folders, the innermost first."""
    for part in reversed(Path(name).parts):
        for split, words in WORDS.items():
            if re.search(rf"(?<![a-z])({'|'.join(words)})(?![a-z])", part.lower()):
                return split
    return None


def read_split(folder: Path, names: list[str], data: config.HubData) -> tuple[Pairs, str]:
    """(pairs of these files, a summary of what was skipped)."""
    pairs: Pairs = []
    empty = too_long = 0
    columns = [field.split(".")[0] for field in data.fields]
    for path in (folder / name for name in names):
        reader = next(READERS[suffix] for suffix in READERS if path.name.endswith(suffix))
        try:
            for row in reader(path, columns):
                source, target = (find_text(row, field, path) for field in data.fields)
                if not source or not target:
                    empty += 1
                elif max(len(source), len(target)) > data.max_characters:
                    too_long += 1
                else:
                    pairs.append((source, target))
        except UserError:
            raise
        except (
            ValueError,
            OSError,
            EOFError,
            RecursionError,
            zlib.error,
        ) as error:  # pyarrow's errors are ValueErrors
            raise UserError(f"{path} cannot be read: {error}") from None
    counts = {"pairs with an empty side": empty, "too long pairs": too_long}
    return pairs, join_names(f"{count:,} {noun}" for noun, count in counts.items() if count)
