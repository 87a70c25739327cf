"""The synthetic pairs of a run: translated before it is trained, by a model that may be trained first.

Entry n of `data.synthetic`, counted from 1, has a folder, by default synthetic/n in the run folder, with

    model/         the run of the translating model, if `from` names a preset or a .toml file
    pairs.jsonl    the pairs, and pairs.card.json, where they came from

so that a run has everything it was made of, and an interrupted one goes on wherever it was.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from regard import augment, documents, presets, schemas, shipped
from regard.config import Config, Data, DatasetData, ParallelData, Recipe
from regard.display import Display
from regard.errors import UserError
from regard.loading import load, read_configs
from regard.text import corpus, moses, synthetic
from regard.text.corpus import Corpus
from regard.text.pairs import SPLITS, Pairs

FOLDER, PAIRS, MODEL = "synthetic", "pairs.jsonl", "model"
TrainRun = Callable[[Config, Path], Any]
"""Trains a run in a folder, or continues it there."""


def recipes(config: Config) -> list[tuple[int, Any]]:
    """The entries of data.synthetic that are translated first, with their numbers, from 0."""
    entries = config.data.synthetic if isinstance(config.data, ParallelData) else ()
    return [(n, entry) for n, entry in enumerate(entries) if entry.translator is not None]


def choose_files(config: Config) -> Config:
    """The config with a file for the pairs of each entry, relative to the run folder."""
    files = {
        number: entry.model_copy(update={"file": f"{FOLDER}/{number + 1}/{PAIRS}"})
        for number, entry in recipes(config)
        if entry.file is None
    }
    return replace_entries(config, files)


def replace_entries(config: Config, entries: dict[int, Any]) -> Config:
    """The config with other entries of data.synthetic, by number."""
    if not entries:
        return config
    changed = tuple(entries.get(n, entry) for n, entry in enumerate(config.data.synthetic))
    # Through the settings that were given: what follows the amount of data must see which they are.
    table = config.model_dump(exclude_unset=True)
    table["data"]["synthetic"] = [entry.model_dump(exclude_unset=True) for entry in changed]
    return Config.model_validate(table)


def is_run(name: str) -> bool:
    """Whether a name of `from` stands for trained models, by a folder, as shipped, or on the hub."""
    runs = map(str, shipped.split_runs(name))
    return all(run.startswith("hf:") or shipped.find_run(run).is_dir() for run in runs)


def count_pairs(config: Config, load_corpus: Callable[[Any], Corpus]) -> int:
    """The number of training pairs in an epoch, as far as it is known before anything is translated."""
    data = config.data
    if not isinstance(data, ParallelData) or not data.synthetic:
        return load_corpus(data).num_train
    train = load_corpus(real_data(data))["train"]
    sizes = [len(select(entry, data, train, number)) for number, entry in enumerate(data.synthetic)]
    repeats = [entry.repeat for entry in data.synthetic]
    return data.repeat * len(train) + sum(map(int.__mul__, repeats, sizes))


def select(entry: Any, data: ParallelData, train: Pairs, number: int) -> Sequence[Any]:
    """The pairs of an entry, or the texts that are to be translated."""
    if entry.translator is None:
        return synthetic.read_synthetic(entry, f"data.synthetic.{number}")
    texts = synthetic.load_monolingual(entry, data, train)
    if entry.limit is None or entry.limit >= len(texts):
        return texts
    return [texts[row] for row in corpus.select_rows(len(texts), entry.limit)]


def real_data(data: ParallelData) -> ParallelData:
    """The data without synthetic pairs."""
    return data.model_copy(update={"synthetic": (), "repeat": 1})


def prepare(
    config: Config, device: str, display: Display, train_run: TrainRun
) -> list[dict[str, Any]]:
    """Make the pairs of every entry that are not there yet; return the cards of all.

    `config`: with the absolute paths of their files.
    """
    list(makers(config))  # a circle is an error before anything is trained
    for number, entry in recipes(config):
        if not Path(entry.file).is_file():
            try:
                make_pairs(config.data, entry, number, device, display, train_run)
            except UserError as error:
                raise UserError(f"data.synthetic.{number}: {error}") from None
    cards = [augment.card_path(Path(entry.file)) for _, entry in recipes(config)]
    return [documents.read(card, schemas.AugmentCard) for card in cards if card.is_file()]


def make_pairs(
    data: ParallelData,
    entry: Any,
    number: int,
    device: str,
    display: Display,
    train_run: TrainRun,
) -> None:
    """Train the translating model if `from` is no run, and translate the text of an entry."""
    out = Path(entry.file)
    real = corpus.load(real_data(data), raw=True)  # a model of preprocessed text reads raw text
    texts = select(entry, data, real["train"], number)
    run = entry.translator
    if is_run(run):
        check_direction(run, data, entry)
    else:
        folder = out.parent / MODEL
        display.print(f"data.synthetic.{number}: training {run} in {folder}")
        train_run(reverse_config(entry, data), folder)
        run = str(folder)
    translator = load(run, device)
    check_preprocessed(translator.config.data, data, run)
    display.print(f"data.synthetic.{number}: translating {len(texts):,} texts with {run}")
    held_out = synthetic.normalised_sentences(
        real[split] for split in SPLITS if split != "train" and split in real.splits
    )
    recipe = Recipe(**{name: getattr(entry, name) for name in Recipe.model_fields})
    augmenter = augment.Augmenter(translator, recipe, held_out)
    origin = augment.describe(translator, relative_names(entry.translator, out.parent))
    origin |= {"monolingual": entry.monolingual, "language": entry.language, "limit": entry.limit}

    def report(lines: int, counts: Any) -> None:
        display.update(lines / max(len(texts), 1), f"{counts['pairs']:,} pairs")

    with display:
        card = augment.write_pairs(augmenter, texts, out, origin, report)
    display.print(f"data.synthetic.{number}: {augment.summarise(card['counts'])}")


def relative_names(run: str, folder: Path) -> str:
    """The names in `from`, with paths as seen from `folder`: a card moves with its run."""
    names = map(str, shipped.split_runs(run))
    return ",".join(os.path.relpath(n, folder) if os.path.isabs(n) else n for n in names)


def check_preprocessed(given: Data, data: ParallelData, run: str) -> None:
    """Raise an error if one of model and data has preprocessed text, and the other has not."""
    if moses.is_preprocessed(given) != moses.is_preprocessed(data):
        kinds = ("raw", "preprocessed") if moses.is_preprocessed(data) else ("preprocessed", "raw")
        raise UserError(
            f"{run} writes {kinds[0]} text, and the real pairs are {kinds[1]} (data.preprocess): "
            "both must be one or the other"
        )


def reverse_config(entry: Any, data: ParallelData) -> Config:
    """The experiment of a `from` that is no run, on the real pairs of this one, with their sides swapped for
    back-translation. It keeps its own synthetic pairs: a second round has them.
    """
    table = presets.load(entry.translator).model_dump(exclude_unset=True)
    given = table.get("data", {})
    own = {key: given[key] for key in ("repeat", "synthetic") if key in given}
    shared = data.model_dump(exclude_unset=True, exclude={"repeat", "synthetic"})
    kind = {"kind": data.kind, "swap": data.swap != entry.reverse}  # type: ignore[attr-defined]
    table["data"] = shared | own | kind
    return Config.model_validate(table)


def makers(config: Config, chain: tuple[str, ...] = ()) -> Iterator[Config]:
    """The config, and those of all models that are trained first to make its synthetic pairs.

    An error if a model would need pairs of its own, directly or through others.
    """
    yield config
    for _, entry in recipes(config):
        name = entry.translator
        if is_run(name) or Path(entry.file or "").is_file():
            continue
        if name in chain:
            raise UserError(f"data.synthetic: from is circular: {' from '.join((*chain, name))}")
        yield from makers(reverse_config(entry, config.data), (*chain, name))


def check_direction(run: str, data: ParallelData, entry: Any) -> None:
    """Raise an error if the languages of a run are known, and are not those to translate."""
    given = read_configs(run)[0].data
    languages = synthetic.languages(data)
    wanted = languages[::-1] if entry.reverse else languages
    found = synthetic.languages(given)
    if isinstance(given, DatasetData) and None not in wanted and found != wanted:
        raise UserError(
            f"{run} translates {' to '.join(map(str, found))}, and "
            f"{' to '.join(map(str, wanted))} is needed (reverse is {str(entry.reverse).lower()})"
        )
