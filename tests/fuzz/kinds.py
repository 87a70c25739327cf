"""The registry: every kind of file that Regard reads, how, and what must not change unnoticed."""

import contextlib
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from regard import config, documents, presets, schemas
from regard.api import Translator
from regard.augment import Augmenter, write_pairs
from regard.compare import curves, report
from regard.compare.plan import plan
from regard.compare.sweep import check_settings, is_finished
from regard.config import Config
from regard.loading import load
from regard.models import load_pretrained, weights
from regard.models.int8_probe import KERNELS, recall
from regard.runs import find_runs, open_run, tabulate
from regard.serve.catalogue import read_comparison
from regard.text import cache, corpus, datasets, references
from regard.text.hub import Repository
from regard.text.lines import read_lines
from regard.text.shard_writer import write_shards
from regard.text.stream import open_stream
from regard.text.synthetic import read_synthetic
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import ShardedPairs
from regard.training import train
from tests.fuzz.samples import PAIRS, SHORT, TEXTS, files_on_disk


@dataclass(frozen=True)
class Kind:
    """A kind of file: `read(folder)` is what the commands do with it, and returns what must stay the same."""

    sample: str
    """Which of SAMPLES has the file."""
    file: str
    """Its path, which may be a pattern."""
    form: str
    """Which of FORMS mutates it."""
    read: Callable[[Path], Any]
    is_checked: bool = True
    """Whether a changed result without a notice is a defect. A text or a setting of the user's own may be
    edited, and others' files have no checksum."""


# --- readers --------------------------------------------------------------------------------------


def outputs(translator: Translator) -> Any:
    return [(o.text, o.score) for o in translator.translate(TEXTS, beam=2, attention=False)]


def translate(folder: Path) -> Any:
    """`regard translate`; also `regard info`, whose figures are a record: shown as they are."""
    found = outputs(load(folder / "run"))
    open_run(folder / "run").describe()
    return found


def translate_with_ctranslate2(folder: Path) -> Any:
    return outputs(load(folder / "run", engine=f"ctranslate2:{folder / 'out'}"))


def inspect(folder: Path) -> Any:
    """`regard info`, `regard runs`, a warm start, and a translation, which depends on none of its records."""
    json.dumps(open_run(folder / "run").describe())
    for column in ("val_loss", "test_bleu", "preset", "seconds"):
        tabulate(find_runs(folder), column)
    curves.read_curve(folder / "run")
    return outputs(load(folder / "run"))


class EnoughTraining(Exception):  # noqa: N818
    """Nothing is wrong, only long."""


@contextlib.contextmanager
def stop_training(seconds: float) -> Iterator[None]:
    """Edited settings may ask for a million epochs: raise `EnoughTraining` after some CPU time."""

    def stop(*_: Any) -> None:
        raise EnoughTraining

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def resume(folder: Path) -> Any:
    """`regard train --resume`: the weights and the card."""
    options = {"resume": True, "console": Console(file=io.StringIO())}
    try:
        with stop_training(4):
            card = train(None, folder / "run", "cpu", **options)
    except EnoughTraining:
        return "training goes on"
    found = weights.checksum(weights.read(folder / "run" / "model.safetensors")[0])
    return found, card["figures"]["steps"], card["figures"]["val_loss"]


def resume_and_inspect(folder: Path) -> Any:
    open_run(folder / "run").describe()
    return resume(folder)


def compare(folder: Path) -> Any:
    """`regard compare` of finished runs, and its page in `regard serve`; the outputs are a record."""
    out = folder / "out"
    runs = plan([str(folder / "p.toml")], [], [], [2], out / "runs")
    check_settings(runs)
    pending = [one for one in runs if not is_finished(one, "test", [1])]
    if not pending:
        report.write_report(runs, "test", "regard compare", [], out)
        read_comparison("out", out)
        for one in runs:
            curves.read_curve(one.folder)


def convert_checkpoint(folder: Path, name: str) -> Any:
    """The start of fine-tuning."""
    model = config.Pretrained(name=str(folder / name))
    loaded = load_pretrained(model, config.PretrainedTokenizer())
    settings = Config.model_validate(
        {
            "data": {"kind": "files", "train": "a.tsv", "val": "b.tsv"},
            "tokenizer": {"kind": "pretrained"},
            "model": {"kind": "pretrained", "name": "x"},
            "search": SHORT,
        }
    )
    return outputs(Translator(settings, loaded.tokenizers, loaded.model))


def read_checkpoint(folder: Path) -> Any:
    return convert_checkpoint(folder, "")


def read_gguf(folder: Path) -> Any:
    return convert_checkpoint(folder, "tiny.gguf")


def read_cached_ids(folder: Path) -> Any:
    os.environ["REGARD_CACHE"] = str(folder)
    encoded = cache.encode_cached(PAIRS, TokenizerPair.load(folder / "tokenizer.json"))
    return [[list(map(int, row)) for row in side] for side in (encoded.source, encoded.target)]


def read_shards(folder: Path) -> Any:
    """Training pairs on disk: the scan of the text, and the shards."""
    os.environ["REGARD_CACHE"] = str(folder)
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    stream = open_stream(files_on_disk(folder))
    data = ShardedPairs(write_shards(stream, tokenizers), tokenizers)
    pairs = data.read(range(len(data.paths)))
    sides = [[list(map(int, row)) for row in side] for side in (pairs.source, pairs.target)]
    return stream.count, stream.checksum, stream.sample, sides


def read_pairs(folder: Path, train_files: Any) -> Any:
    data = config.FileData(train=train_files, val=train_files)
    return corpus.load(data, ("train",)).splits


def read_tsv(folder: Path) -> Any:
    read_lines(folder / "t.tsv")
    return read_pairs(folder, str(folder / "t.tsv"))


def read_zst(folder: Path) -> Any:
    read_lines(folder / "t.tsv.zst")
    return read_pairs(folder, str(folder / "t.tsv.zst"))


def read_gz(folder: Path) -> Any:
    read_lines(folder / "t.tsv.gz")
    return read_pairs(folder, str(folder / "t.tsv.gz"))


def read_jsonl(folder: Path) -> Any:
    return read_pairs(folder, str(folder / "t.jsonl"))


def read_parallel(folder: Path) -> Any:
    return read_pairs(folder, (str(folder / "t.source"), str(folder / "t.target")))


def read_zip(folder: Path) -> Any:
    os.environ["REGARD_DATA"] = str(folder)
    return datasets.load("tatoeba-fr-en", "fr", "en")


def read_dataset(folder: Path) -> Any:
    return corpus.load(config.HubData(name=str(folder / "hf"), fields=("source", "target"))).splits


def read_comparison_page(folder: Path) -> Any:
    read_comparison("out", folder / "out").model_dump_json()


def read_scored(folder: Path) -> Any:
    """`regard evaluate --input`."""
    return references.read_references(folder / "t.jsonl", fields=("source", "target"))


def read_preset(folder: Path) -> Any:
    return presets.load(str(folder / "mine.toml")).model_dump()


def recall_kernels(folder: Path) -> Any:
    os.environ["REGARD_CACHE"] = str(folder)
    return recall("this machine", lambda: dict.fromkeys(KERNELS, 1.5))


def read_listing(folder: Path) -> Any:
    path = folder / "listing.json"
    return Repository.parse_listing(str(path), path)


def read_progress(folder: Path) -> Any:
    """An interrupted `regard augment` goes on, or starts again."""
    augmenter = Augmenter(load(folder / "run"), config.Recipe(max_ratio=1e6))
    augmenter.check_output = lambda *_: None
    out = folder / "half.jsonl"
    write_pairs(augmenter, [source for source, _ in PAIRS], out, {"run": "run"})
    return out.read_text("utf-8")


def read_pairs_card(folder: Path) -> Any:
    documents.read(folder / "pairs.card.json", schemas.AugmentCard)


def read_synthetic_pairs(folder: Path) -> Any:
    return read_synthetic(
        config.SyntheticPairs(file=str(folder / "pairs.jsonl")), "data.synthetic.0"
    )


WEIGHTS, TOKENIZER = "run/model.safetensors", "run/tokenizer.json"
KINDS: dict[str, Kind] = {
    "config": Kind("words", "run/config.toml", "toml", translate),
    "preset": Kind("texts", "mine.toml", "toml", read_preset, is_checked=False),
    "tokenizer-characters": Kind("characters", TOKENIZER, "json", translate),
    "tokenizer-words": Kind("words", TOKENIZER, "json", translate),
    "tokenizer-bpe": Kind("bpe", TOKENIZER, "json", translate),
    "tokenizer-pretrained": Kind("pretrained", TOKENIZER, "json", translate),
    "weights": Kind("words", WEIGHTS, "safetensors", translate),
    "weights-int8": Kind("int8", WEIGHTS, "safetensors", translate),
    "weights-pretrained": Kind("pretrained", WEIGHTS, "safetensors", translate),
    "weights-hub": Kind(
        "hub", "out/model.safetensors", "safetensors", lambda f: outputs(load(f / "out"))
    ),
    "architecture": Kind("pretrained", "run/architecture.json", "json", translate),
    "state": Kind("interrupted", "run/last/state.safetensors", "safetensors", resume),
    "averaged-weights": Kind(
        "interrupted-average", "run/last/weights-3.safetensors", "safetensors", resume
    ),
    "metrics-resume": Kind("interrupted", "run/metrics.jsonl", "jsonl", resume_and_inspect),
    "metrics": Kind("trained", "run/metrics.jsonl", "jsonl", inspect),
    "card": Kind("trained", "run/card.json", "json", inspect),
    "evaluation": Kind("trained", "run/evaluation-test.json", "json", inspect),
    "compare-card": Kind("comparison", "out/runs/*/seed-1/card.json", "json", compare),
    "compare-metrics": Kind("comparison", "out/runs/*/seed-1/metrics.jsonl", "jsonl", compare),
    "compare-evaluation": Kind(
        "comparison", "out/runs/*/seed-1/evaluation-test.json", "json", compare
    ),
    "compare-config": Kind("comparison", "out/runs/*/seed-1/config.toml", "toml", compare),
    "token-cache": Kind("tokens", "tokenised/*", "npy", read_cached_ids),
    "shard": Kind("shards", "shards/*/*/*.ids", "binary", read_shards),
    "scan": Kind("shards", "shards/*/scan", "text", read_shards),
    "gguf": Kind("gguf", "tiny.gguf", "binary", read_gguf, is_checked=False),
    "hf-config": Kind("checkpoint", "config.json", "json", read_checkpoint, is_checked=False),
    "hf-tokenizer": Kind("checkpoint", "tokenizer.json", "json", read_checkpoint, is_checked=False),
    "hf-weights": Kind(
        "checkpoint", "model.safetensors", "safetensors", read_checkpoint, is_checked=False
    ),
    "ctranslate2-model": Kind("ctranslate2", "out/model.bin", "binary", translate_with_ctranslate2),
    "ctranslate2-config": Kind(
        "ctranslate2", "out/config.json", "json", translate_with_ctranslate2
    ),
    "ctranslate2-vocabulary": Kind(
        "ctranslate2", "out/*vocabulary.json", "json", translate_with_ctranslate2
    ),
    "ctranslate2-shortlist": Kind(
        "ctranslate2", "out/vmap.txt", "text", translate_with_ctranslate2
    ),
    "ctranslate2-record": Kind(
        "ctranslate2", "out/regard.json", "json", translate_with_ctranslate2
    ),
    "text-tsv": Kind("texts", "t.tsv", "text", read_tsv, is_checked=False),
    "text-gz": Kind("texts", "t.tsv.gz", "gzip", read_gz, is_checked=False),
    "text-zst": Kind("texts", "t.tsv.zst", "binary", read_zst, is_checked=False),
    "text-jsonl": Kind("texts", "t.jsonl", "jsonl", read_jsonl, is_checked=False),
    "text-parallel": Kind("texts", "t.source", "text", read_parallel, is_checked=False),
    "dataset-zip": Kind("texts", "tatoeba/fra-eng.zip", "zip", read_zip, is_checked=False),
    "dataset-jsonl": Kind("texts", "hf/train.jsonl", "jsonl", read_dataset, is_checked=False),
    "references": Kind("texts", "t.jsonl", "jsonl", read_scored, is_checked=False),
    "compare-results": Kind("comparison", "out/results.json", "json", read_comparison_page),
    "compare-table": Kind("comparison", "out/table.md", "text", read_comparison_page),
    "config-resume": Kind("interrupted", "run/config.toml", "toml", resume),
    "tokenizer-resume": Kind("interrupted", TOKENIZER, "json", resume),
    "hf-tokenizer-config": Kind(
        "checkpoint", "tokenizer_config.json", "json", read_checkpoint, is_checked=False
    ),
    "int8-kernels": Kind("records", "int8.json", "json", recall_kernels, is_checked=False),
    "augment-progress": Kind(
        "pairs", "half.jsonl.progress.json", "json", read_progress, is_checked=False
    ),
    "augment-card": Kind("pairs", "pairs.card.json", "json", read_pairs_card, is_checked=False),
    "augment-pairs": Kind("pairs", "pairs.jsonl", "jsonl", read_synthetic_pairs, is_checked=False),
    "hub-listing": Kind("records", "listing.json", "json", read_listing, is_checked=False),
}
