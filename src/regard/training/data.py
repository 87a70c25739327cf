"""The data of a run: the corpus, its tokenizers, and its splits as token ids."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from regard import documents
from regard.config import Bpe, Config, Data
from regard.config.defaults import chosen_values, follow_data, follows_data
from regard.display import Display, format_duration
from regard.errors import UserError
from regard.text import cache, corpus
from regard.text.batch import EncodedPairs
from regard.text.bpe_dropout import BpeDropout
from regard.text.checks import check_corpus
from regard.text.corpus import Corpus
from regard.text.shard_writer import write_shards
from regard.text.stream import PairStream
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import ShardedPairs
from regard.training import synthetic

LoadCorpus = Callable[[Data], Corpus]


def load_corpus(data: Data) -> Corpus:
    """The corpus of a [data] table, for training: its training pairs may stay on disk."""
    return corpus.load(data, on_disk=True)


def load_once(load: LoadCorpus = load_corpus) -> LoadCorpus:
    """`load`, which keeps what it has read."""
    loaded: list[tuple[Data, Corpus]] = []

    def load_or_reuse(data: Data) -> Corpus:
        for known, its_corpus in loaded:
            if known == data:
                return its_corpus
        loaded.append((data, load(data)))
        return loaded[-1][1]

    return load_or_reuse


def load_data(config: Config, display: Display, load: LoadCorpus = load_corpus) -> Corpus:
    """The data of the config, with what there is to report about it printed and in its messages."""
    data = load(config.data)
    data = data.add_messages(f"warning: {text}" for text in check_corpus(config.data, data))
    display.print_all(data.messages)
    return data


def resolve_defaults(config: Config, load: LoadCorpus = load_corpus) -> Config:
    """The config as it is trained and saved: values that nobody set follow the number of training pairs.

    `load`: called only if they do.
    """
    if not follows_data(config):
        return config
    return follow_data(config, synthetic.count_pairs(config, load))


def describe_choices(given: Config, resolved: Config) -> list[str]:
    """A line with the settings that the amount of data decided, if there are any."""
    chosen = chosen_values(given, resolved)
    values = ", ".join(f"{name} = {documents.dumps(value)}" for name, value in chosen.items())
    return [f"chosen by the number of training pairs: {values}"] if chosen else []


def load_tokenizers(
    config: Config, folder: Path, data: Corpus, init_tokenizers: TokenizerPair | None
) -> TokenizerPair:
    """Load the tokenizers from the folder. A new run copies `init_tokenizers`, or trains its own."""
    path = folder / "tokenizer.json"
    if init_tokenizers and config.tokenizer.reuse:
        table = config.tokenizer
        reused = replace(init_tokenizers, max_tokens=table.max_tokens, source_eos=table.source_eos)
        reused.save(path)
    elif not path.is_file():
        TokenizerPair.train(config.tokenizer, data["train"], data.symbols).save(path)
    return TokenizerPair.load(path)


def encode_split(
    data: Corpus, split: str, tokenizers: TokenizerPair, display: Display
) -> tuple[list[tuple[str, str]], EncodedPairs]:
    """A split as text and as token ids, without the pairs that are longer than the tokenizer's limit."""
    encode = EncodedPairs.from_pairs if data.is_synthetic else cache.encode_cached
    encoded = encode(data[split], tokenizers)
    limit = tokenizers.max_tokens
    lengths = enumerate(encoded.lengths())
    source_limit = limit + tokenizers.source_eos
    rows = [row for row, (target, source) in lengths if source <= source_limit and target <= limit]
    if not rows:
        raise all_too_long(split, limit)
    if len(rows) == len(encoded):
        return data[split], encoded
    display.print(f"{split}: skipped {len(encoded) - len(rows):,} pairs over {limit} tokens")
    short = EncodedPairs([encoded.source[r] for r in rows], [encoded.target[r] for r in rows])
    return [data[split][r] for r in rows], short


def all_too_long(split: str, limit: int) -> UserError:
    return UserError(
        f"every pair of the {split} split is longer than {limit} tokens: raise "
        "tokenizer.max_tokens, if the model has positions for more"
    )


def tokenise_to_disk(
    stream: PairStream, tokenizers: TokenizerPair, display: Display
) -> ShardedPairs:
    """The training pairs as token ids in the cache, without those longer than the tokenizer's limit."""
    progress, start = Display(display.console), time.monotonic()

    def report(done: int, total: int) -> None:
        progress.update(done / total, "tokenising")
        if done == total:
            seconds = time.monotonic() - start
            progress.print(f"tokenised {len(stream):,} pairs in {format_duration(seconds)}")

    with progress:
        data = ShardedPairs(write_shards(stream, tokenizers, report), tokenizers)
    if not len(data):
        raise all_too_long("train", tokenizers.max_tokens)
    if data.skipped:
        display.print(f"train: skipped {data.skipped:,} pairs over {tokenizers.max_tokens} tokens")
    return data


def load_bpe_dropout(
    config: Config, pairs: list[tuple[str, str]], tokenizers: TokenizerPair
) -> BpeDropout | None:
    """The segmentations of the training pairs, if `tokenizer.dropout` asks for several."""
    table = config.tokenizer
    if not isinstance(table, Bpe) or not table.dropout:
        return None
    return BpeDropout(pairs, tokenizers, table.dropout, config.seed)
