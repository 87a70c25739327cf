"""Public datasets: which there are, where they are on this machine, how to download and load them."""

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from regard import documents, files
from regard.errors import UserError, join_names, suggest
from regard.text.decompress import check_size
from regard.text.download import fetch
from regard.text.lines import read_lines
from regard.text.pairs import SPLITS, Pairs, split_pairs


@dataclass(frozen=True)
class Dataset:
    """A dataset's manifest.

    `files` maps each file to its URL and sha256 (None if the URL serves changing versions); `splits`
    maps each split to its files, with "{}" for the language. With a `member`, the file is a zip that
    holds it: a table of English and the other language, which `split_pairs` divides into splits.

    `optional_splits` maps further test sets to their languages; each has a file SPLIT.LANGUAGE.gz below
    `optional_url`. Its checksum is not known, so it is never downloaded, but read where the user put it.
    """

    description: str
    licence: str
    languages: tuple[str, ...]
    folder: str
    files: dict[str, tuple[str, str | None]]
    splits: dict[str, tuple[str, ...]]
    member: str | None = None
    parallel: bool = True
    optional_splits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    optional_url: str = ""

    @property
    def all_splits(self) -> tuple[str, ...]:
        return (*self.splits, *self.optional_splits)

    def files_for(self, languages: Iterable[str]) -> list[str]:
        """The names of the files that hold these languages."""
        names = [name for names in self.splits.values() for name in names]
        return list(dict.fromkeys(name.format(each) for each in languages for name in names))


MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/"
MANYTHINGS = "https://www.manythings.org/anki/"

_TRANSLATIONS = {
    "train.cs.gz": "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.cs.gz": "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.cs.gz": "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}
_CAPTIONS = {
    "train.1.de.gz": "0002241b52aba5160c08d644ea0d64a9bf46a2dfffcf619c9e3cdaa55b357004",
    "train.1.en.gz": "a0e057f07a9733199c0d755d77f6d583dc6f40a3180734b1130a216e2fdf3a3b",
    "train.2.de.gz": "ac7c29258b90aec0b64d677c5bfc831fc402e6296d0aa9cc7a3433ddbff85c37",
    "train.2.en.gz": "d79dd70a9eafb2d1fe40151621278c4ae69b3c148c5052a53d7c7a41bf3ba023",
    "train.3.de.gz": "ec5e6508813814aa31311b34e26e24f903dd7701f8d0668313259b7f975d7aa0",
    "train.3.en.gz": "86e16fdcc699bcb6bca0f87c3cf1051f7de5ee3674dd588cedc5200194282749",
    "train.4.de.gz": "bcee8ac6eb47d8a7dc8cff47d9a0fbd80b4363cfda22021bacd297f9604221a4",
    "train.4.en.gz": "3771b84e010ad6197806d2a1188cb07c12149e3e0d178dd5966dee5763733686",
    "train.5.de.gz": "dccb0ca6ff25e0b1f0d385f59fb809184e0db89622d88371725e3ec46d43bfc0",
    "train.5.en.gz": "73988689307fe836994eae59735dc840c15da9775455fa76e6ed22606a042a91",
    "val.1.de.gz": "a6b9ad98bdab8882d2ac40d1bc05db89341947162c07d2d0d27e80f01897ba05",
    "val.1.en.gz": "4ce8f8ffbef4a1c066e3f35a5ffc764666c26c318a733d9bdc6349577f1c6f9c",
    "val.2.de.gz": "dbbf0f8fa54fdb4a3c64d22a1c0773ade3f775c39e4513ab5ca6d683025086dc",
    "val.2.en.gz": "4103944d652127e5af33ba2761d71cb6c0e1509c1a67d4387dc67ad768cfb752",
    "val.3.de.gz": "5eac83b577fe9bc781e60b609545123804e9dd29de4c2bd1b9e178ad8b29a1da",
    "val.3.en.gz": "6ecd848713d98faa9c6db2e9e457a778335358e6e3a4743cf4e929a0516e399a",
    "val.4.de.gz": "1c3054cfd1e47f17d8a20fcec6615cfd26d7dc2c8c4ef4625cd9db9f4e4590ea",
    "val.4.en.gz": "bfab4f0cbdac6233f206bbbfbd324dc02b258e291c3f410a69f9884171008788",
    "val.5.de.gz": "185d6cb907313e6a6eef76f09c657e5748e08ee3c7a5b26200186e171e2c8344",
    "val.5.en.gz": "4b6a6541b7b58d545eff7feead4187aeb0439a7178a7bed6951121e0ecbaee66",
}
_CAPTIONS_PER_IMAGE = 5

DATASETS: dict[str, Dataset] = {
    "multi30k": Dataset(
        description="image descriptions and their translations, 29,000 / 1,014 / 1,000 pairs",
        licence="research use; derived from Flickr30k",
        languages=("de", "en", "fr", "cs"),
        folder="multi30k",
        files={
            name: (f"{MULTI30K}task1/raw/{name}", sha256) for name, sha256 in _TRANSLATIONS.items()
        },
        splits={
            "train": ("train.{}.gz",),
            "val": ("val.{}.gz",),
            "test": ("test_2016_flickr.{}.gz",),
        },
        optional_splits={
            "test_2017_flickr": ("de", "en", "fr"),
            "test_2017_mscoco": ("de", "en", "fr"),
            "test_2018_flickr": ("de", "en", "fr", "cs"),
        },
        optional_url=f"{MULTI30K}task1/raw/",
    ),
    "multi30k-captions": Dataset(
        description="five descriptions per image, not translations of each other",
        licence="research use; derived from Flickr30k",
        languages=("de", "en"),
        folder="multi30k-captions",
        files={name: (f"{MULTI30K}task2/raw/{name}", sha256) for name, sha256 in _CAPTIONS.items()},
        splits={
            "train": tuple(
                f"train.{number}.{{}}.gz" for number in range(1, _CAPTIONS_PER_IMAGE + 1)
            ),
            "val": tuple(f"val.{number}.{{}}.gz" for number in range(1, _CAPTIONS_PER_IMAGE + 1)),
        },
        parallel=False,
    ),
    "tatoeba-fr-en": Dataset(
        description="short everyday sentences, split so that no sentence is in two splits",
        licence="CC BY 2.0 FR, tatoeba.org",
        languages=("fr", "en"),
        folder="tatoeba",
        files={"fra-eng.zip": (f"{MANYTHINGS}fra-eng.zip", None)},
        splits=dict.fromkeys(SPLITS, ("fra-eng.zip",)),
        member="fra.txt",
    ),
    "tatoeba-de-en": Dataset(
        description="short everyday sentences, split so that no sentence is in two splits",
        licence="CC BY 2.0 FR, tatoeba.org",
        languages=("de", "en"),
        folder="tatoeba",
        files={"deu-eng.zip": (f"{MANYTHINGS}deu-eng.zip", None)},
        splits=dict.fromkeys(SPLITS, ("deu-eng.zip",)),
        member="deu.txt",
    ),
}


@dataclass(frozen=True)
class DatasetStatus:
    """A row of `regard data list`: `folder` holds the languages `available`, and `optional_splits`."""

    name: str
    description: str
    licence: str
    languages: tuple[str, ...]
    splits: tuple[str, ...]
    folder: Path | None
    available: tuple[str, ...]
    optional_splits: tuple[str, ...] = ()


def cache_dir() -> Path:
    """The folder for downloads: $REGARD_CACHE, $XDG_CACHE_HOME/regard or ~/.cache/regard."""
    if path := os.environ.get("REGARD_CACHE"):
        return Path(path).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "regard"


def _candidate_folders(name: str) -> list[Path]:
    """The folders to search for the dataset, in order."""
    paths = [path for path in os.environ.get("REGARD_DATA", "").split(os.pathsep) if path]
    roots = [*(Path(path).expanduser() for path in paths), cache_dir()]
    names = dict.fromkeys((lookup(name).folder, name))
    return [root / folder for root in roots for folder in names]


def lookup(name: str) -> Dataset:
    """The manifest of the dataset of that name."""
    if name not in DATASETS:
        raise UserError(
            f'there is no dataset "{name}".{suggest(name, DATASETS)} There are {join_names(DATASETS)}.'
        )
    return DATASETS[name]


def find_folder(name: str, *languages: str) -> Path | None:
    """The first folder that holds every file of the dataset (in these languages), or None."""
    dataset = lookup(name)
    needed = dataset.files_for(languages or dataset.languages)
    # os.path.isfile: a folder without permission counts as empty, and raises no error.
    for folder in _candidate_folders(name):
        if all(os.path.isfile(folder / file) for file in needed):
            return folder
    return None


def list_status() -> list[DatasetStatus]:
    """Every dataset, and the folder and languages available on this machine."""
    rows = []
    for name, dataset in DATASETS.items():
        available = {
            folder: tuple(
                language
                for language in dataset.languages
                if all(os.path.isfile(folder / file) for file in dataset.files_for([language]))
            )
            for folder in _candidate_folders(name)
        }
        best = max(available, key=lambda folder: len(available[folder]))
        is_usable = len(available[best]) > dataset.parallel
        rows.append(
            DatasetStatus(
                name,
                dataset.description,
                dataset.licence,
                dataset.languages,
                tuple(dataset.splits),
                best if is_usable else None,
                available[best] if is_usable else (),
                find_optional(dataset, best) if is_usable else (),
            )
        )
    return rows


def find_optional(dataset: Dataset, folder: Path) -> tuple[str, ...]:
    """The optional splits that a folder has in two languages or more."""
    return tuple(
        split
        for split, languages in dataset.optional_splits.items()
        if sum(os.path.isfile(folder / f"{split}.{language}.gz") for language in languages) > 1
    )


def get(name: str, report: Callable[[str, int, int | None], object] | None = None) -> Path:
    """Download the missing files of a dataset into the user cache; return its folder, wherever it is.

    `report(file, done, total or None)` is called with the progress.
    """
    dataset = lookup(name)
    existing = find_folder(name)
    if existing is not None:
        return existing
    folder = cache_dir() / dataset.folder
    for file, (url, sha256) in dataset.files.items():
        path = folder / file
        if path.is_file():
            continue
        actual = fetch(
            url,
            path,
            sha256=sha256,
            report=None if report is None else partial(report, file),
            check=None if dataset.member is None else partial(_check_zip, url, dataset),
        )
        if sha256 is None:
            date = datetime.now(UTC).isoformat(timespec="seconds")
            record = {"url": url, "sha256": actual, "date": date, "bytes": path.stat().st_size}
            files.write(folder / f"{file}.json", documents.dumps(record, indent=2) + "\n")
    return folder


def _check_zip(url: str, dataset: Dataset, part: Path) -> None:
    # Without a checksum, a login page would be accepted as the file.
    try:
        with zipfile.ZipFile(part) as archive:
            archive.getinfo(dataset.member or "")
    except (zipfile.BadZipFile, KeyError):
        raise UserError(
            f"expected a zip with {dataset.member} from {url}; got something else, which was deleted. "
            f"Open the URL in a browser, and save the file in {part.parent} as "
            f'"{part.name.removesuffix(".part")}".'
        ) from None


def load(name: str, source: str, target: str, splits: Sequence[str] = SPLITS) -> dict[str, Pairs]:
    """The pairs of a dataset by split, from language `source` to language `target`."""
    dataset = lookup(name)
    if not dataset.parallel:
        raise UserError(f'"{name}" has no translations: it is monolingual text.')
    if source == target:
        raise UserError(f'expected two different languages; got "{source}" twice.')
    folder = _require_folder(name, source, target)
    if dataset.member is not None:
        (file,) = dataset.files_for([source])
        table = split_pairs(_read_table(name, folder / file, dataset.member))
        table = {split: pairs for split, pairs in table.items() if split in splits}
        if source == "en":
            return table
        return {split: [(other, en) for en, other in pairs] for split, pairs in table.items()}
    return {
        split: _read_split(name, split, folder, source, target)
        for split in dataset.all_splits
        if split in splits
    }


def _read_split(name: str, split: str, folder: Path, source: str, target: str) -> Pairs:
    """The pairs of two line-aligned files."""
    dataset = lookup(name)
    if split in dataset.optional_splits:
        paths = _optional_paths(name, split, folder, source, target)
    else:
        (pattern,) = dataset.splits[split]
        paths = [folder / pattern.format(language) for language in (source, target)]
    sides = [_read_lines(name, path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"expected equally many lines in both files; got {len(sides[0]):,} in {paths[0]} and "
            f"{len(sides[1]):,} in {paths[1]}. {_download_again(name, *paths)}"
        )
    return list(zip(*sides, strict=True))


def _optional_paths(name: str, split: str, folder: Path, *languages: str) -> list[Path]:
    """The files of an optional split, or an error that says where to put which."""
    dataset = lookup(name)
    known = dataset.optional_splits[split]
    for language in languages:
        if language not in known:
            raise UserError(
                f'the split {split} of {name} has no language "{language}". It has {join_names(known)}.'
            )
    paths = [folder / f"{split}.{language}.gz" for language in languages]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        urls = join_names(f"{dataset.optional_url}{path.name}" for path in missing)
        raise UserError(
            f"the split {split} of {name} is optional, and not on this machine: download {urls} to "
            f"{folder}. `regard data get` does not, because no checksum is known"
        )
    return paths


def load_monolingual(name: str, language: str) -> dict[str, list[str]]:
    """The sentences of a dataset in one language, by split."""
    dataset = lookup(name)
    folder = _require_folder(name, language)
    if dataset.member is not None:
        other = next(each for each in dataset.languages if each != language)
        splits = load(name, language, other)
        return {split: list(dict.fromkeys(text for text, _ in splits[split])) for split in splits}
    return {
        split: [
            line
            for pattern in patterns
            for line in _read_lines(name, folder / pattern.format(language))
        ]
        for split, patterns in dataset.splits.items()
    }


def _require_folder(name: str, *languages: str) -> Path:
    """The folder that holds these languages of the dataset, or an error that says how to get them."""
    dataset = lookup(name)
    for language in languages:
        if language not in dataset.languages:
            raise UserError(
                f'"{name}" has no language "{language}".{suggest(language, dataset.languages)} '
                f"It has {join_names(dataset.languages)}."
            )
    folder = find_folder(name, *languages)
    if folder is None:
        needed = dataset.files_for(languages)
        examples = join_names(needed[:3]) + (", ..." if len(needed) > 3 else "")
        raise UserError(
            f'dataset "{name}" ({join_names(languages)}) is not on this machine. Get it with: regard data '
            f"get {name}; or set REGARD_DATA to a folder that holds {dataset.folder}/ with {examples}. "
            f"Searched {join_names(map(str, _candidate_folders(name)))}."
        )
    return folder


def _download_again(name: str, *paths: Path) -> str:
    return f"Delete {join_names(map(str, paths))} and download again with: regard data get {name}."


def _read_lines(name: str, path: Path) -> list[str]:
    try:
        return [line.strip() for line in read_lines(path)]
    except UserError as error:
        raise UserError(f"{error}. {_download_again(name, path)}") from None


def _read_table(name: str, path: Path, member: str) -> Pairs:
    """The pairs (English, other language) of a zipped TSV, without duplicates."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(member)
            check_size(path, info.compress_size, info.file_size)  # zipfile reads no more than that
            text = archive.read(info).decode("utf-8-sig")
    except (
        OSError,
        RuntimeError,  # encrypted, or compressed with another method
        zipfile.BadZipFile,
        KeyError,
        EOFError,
        zlib.error,
        UnicodeDecodeError,
    ) as error:
        raise UserError(f"{path} cannot be read: {error}. {_download_again(name, path)}") from None
    rows = ([cell.strip() for cell in line.split("\t")[:2]] for line in text.split("\n"))
    pairs = list(dict.fromkeys((row[0], row[1]) for row in rows if len(row) == 2 and all(row)))
    if not pairs:
        raise UserError(
            f"expected lines of English TAB translation in {member} of {path}; got none. "
            f"{_download_again(name, path)}"
        )
    return pairs
