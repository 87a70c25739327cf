"""Synthetic pairs: a model translates text in one language, and filters keep what looks like a translation.

    back-translation        (output, text)    a model of the other direction: its outputs become sources
    forward translation     (text, output)    a better model, or an ensemble: distillation

Written window by window to FILE.part, with a record of how far it is: an interrupted command goes on there.
What made the pairs is in FILE's card, `pairs.card.json` of `pairs.jsonl`.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import regard
from regard import documents, files, schemas
from regard.config import Data, Recipe
from regard.errors import RegardWarning, UserError
from regard.lines import windows
from regard.models import weights
from regard.search import Hypothesis, token_log_probs
from regard.text import corpus, moses
from regard.text.batch import EncodedPairs
from regard.text.pairs import SPLITS, Pairs, normalise
from regard.text.synthetic import normalised_sentences
from regard.text.tokenizer import EOS
from regard.translation import Sampling
from regard.translator import Translator

WINDOW, GPU_WINDOW = 2048, 16_384  # in lines
LONGEST_NGRAM, REPETITIONS = 4, 3
FAULTS = {
    "empty": "blank lines",
    "duplicate": "texts that occurred before",
    "held_out": "texts of the validation or test set",
    "unreadable": "texts that the model cannot read",
    "unfinished": "outputs without an end",
    "blank": "empty outputs",
    "copy": "outputs that copy the text",
    "ratio": "pairs of very different lengths",
    "repetition": "outputs that repeat themselves",
    "score": "outputs of low probability",
    "round_trip": "pairs that do not translate back",
}
"""Why a text gives no pair, in the order in which it is checked."""
Report = Callable[[int, Counter[str]], object]


@dataclass(frozen=True)
class RoundTrip:
    """A model of the other direction: how probable does it find the text, given the output?"""

    translator: Translator
    min_score: float
    """Of a token, as a mean log-probability."""

    def scores(self, texts: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """The mean log-probability of a token of each text; minus infinity where it is too long."""
        tokenizers = self.translator.tokenizers
        encoded = EncodedPairs.from_pairs(zip(outputs, texts, strict=True), tokenizers)
        limit = tokenizers.max_tokens
        rows = [row for row, lengths in enumerate(encoded.lengths()) if max(lengths) <= limit]
        short = EncodedPairs(
            *([side[r] for r in rows] for side in (encoded.source, encoded.target))
        )
        found = token_log_probs(self.translator.model, short) if rows else []
        scores = [float("-inf")] * len(encoded)
        for row, log_probs in zip(rows, found, strict=True):
            scores[row] = sum(log_probs) / len(log_probs)
        return scores


@dataclass
class Augmenter:
    """Makes pairs of windows of texts, and counts why a text gives none."""

    translator: Translator
    recipe: Recipe
    held_out: set[str] = field(default_factory=set)
    """Sentences that no pair may have, normalised."""
    round_trip: RoundTrip | None = None
    counts: Counter[str] = field(default_factory=Counter)
    seen: set[bytes] = field(default_factory=set)

    def skip(self, texts: Iterable[str | UserError]) -> None:
        """Read over texts of which pairs have been made already."""
        for text in texts:
            self.check_text(text)

    def pairs(self, window: Sequence[str | UserError], first_number: int) -> list[dict[str, Any]]:
        """The pairs of these texts, which are numbered from `first_number`."""
        self.counts["texts"] += len(window)
        sources: dict[int, list[int]] = {}
        for number, text in enumerate(window, start=first_number):
            fault = self.check_text(text)
            if fault is None:
                encoded = self.translator.try_encode(str(text), f"text {number}")
                if not isinstance(encoded, UserError):
                    sources[number] = encoded
                    continue
                fault = "unreadable"
            self.counts[fault] += 1
        outputs = self.search(sources)
        # As the model reads it: a pair of a model of preprocessed text is such text on both sides.
        settings = self.translator.config.data
        texts = {
            number: moses.preprocess(str(window[number - first_number]).strip(), settings, "source")
            for number in sources
        }
        records = [
            record
            for number, text in texts.items()
            if (record := self.make_pair(number, text, sources[number], outputs[number]))
        ]
        kept = self.check_round_trip(records) if self.round_trip else records
        self.counts["pairs"] += len(kept)
        return kept

    def check_text(self, text: str | UserError) -> str | None:
        """Why a text is not translated, if it is not."""
        if isinstance(text, UserError):
            return "unreadable"
        if not text.strip():
            return "empty"
        key = normalise(text)
        digest = blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        return "held_out" if key in self.held_out else None

    def search(self, sources: dict[int, list[int]]) -> dict[int, Hypothesis]:
        """The output of each source; its number seeds its sample."""
        encoded = EncodedPairs(list(sources.values()), [[] for _ in sources])
        sampling = to_sampling(self.recipe)
        numbers = [number - 1 for number in sources]
        found = self.translator.search(
            encoded, self.recipe.beam, sampling=sampling, numbers=numbers
        )
        return {number: best for number, [best] in zip(sources, found, strict=True)}

    def make_pair(
        self, number: int, text: str, source: list[int], output: Hypothesis
    ) -> dict[str, Any] | None:
        """The record of a pair, or None, with the reason counted."""
        translated = self.translator.tokenizers.target.decode(output.ids).strip()
        score = output.score / max(len(output.ids), 1)
        fault = self.check_output(text, translated, len(source), output, score)
        if fault is not None:
            self.counts[fault] += 1
            return None
        sides = (translated, text) if self.recipe.reverse else (text, translated)
        return {"source": sides[0], "target": sides[1], "score": round(score, 4), "line": number}

    def check_output(
        self, text: str, output: str, length: int, hypothesis: Hypothesis, score: float
    ) -> str | None:
        """Why an output makes no pair, if it does not; `length`: of the text, in tokens."""
        ids, recipe = hypothesis.ids, self.recipe
        if not ids or ids[-1] != EOS:
            return "unfinished"
        if not output:
            return "blank"
        key = normalise(output)
        if key in self.held_out:
            return "held_out"
        if key == normalise(text):
            return "copy"
        if max(length, len(ids)) > recipe.max_ratio * min(length, len(ids)):
            return "ratio"
        if has_repetition(output.split()) and not has_repetition(text.split()):
            return "repetition"
        return "score" if recipe.min_score is not None and score < recipe.min_score else None

    def check_round_trip(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The pairs whose output translates back to the text, with how well it does."""
        assert self.round_trip is not None
        sides = ("target", "source") if self.recipe.reverse else ("source", "target")
        texts, outputs = ([record[side] for record in records] for side in sides)
        scores = self.round_trip.scores(texts, outputs)
        kept = [
            record | {"round_trip": round(score, 4)}
            for record, score in zip(records, scores, strict=True)
            if score >= self.round_trip.min_score
        ]
        self.counts["round_trip"] += len(records) - len(kept)
        return kept


def to_sampling(recipe: Recipe) -> Sampling | None:
    names = ("temperature", "top_k", "top_p", "seed")
    return Sampling(**{name: getattr(recipe, name) for name in names}) if recipe.sample else None


def has_repetition(words: Sequence[str]) -> bool:
    """Whether one to four words occur three times in a row, as when a model does not find the end."""
    for size in range(1, LONGEST_NGRAM + 1):
        run = 0
        for index in range(size, len(words)):
            run = run + 1 if words[index] == words[index - size] else 0
            if run == (REPETITIONS - 1) * size:
                return True
    return False


def held_out_sentences(data: Data) -> set[str]:
    """The sentences of the validation and test set, normalised; a warning if they are not available."""
    splits: list[Pairs] = []
    for split in data.file_splits or SPLITS:
        if split == "train":
            continue
        try:
            splits.append(corpus.load_split(data, split))
        except UserError as error:
            message = f"sentences of the {split} set are not left out: {error}"
            warnings.warn(message, RegardWarning, stacklevel=3)
    return normalised_sentences(splits)


# --- files ----------------------------------------------------------------------------------------


def card_path(out: Path) -> Path:
    """pairs.jsonl -> pairs.card.json"""
    return out.with_suffix(".card.json")


def describe(translator: Translator, name: str) -> dict[str, str]:
    """The name of a run and the SHA-256 of its weights."""
    return {"run": name, "weights": weights.checksum(weights.state_tensors(translator.model))}


def write_pairs(
    augmenter: Augmenter,
    texts: Iterable[str | UserError],
    out: Path,
    origin: dict[str, Any],
    report: Report = lambda lines, counts: None,
) -> dict[str, Any]:
    """Write the pairs of all texts to `out`, or go on where this was interrupted; return the card.

    `origin`: what the pairs are made of and how, for the card; if it has changed, it starts again.
    """
    origin = {**origin, "recipe": augmenter.recipe.model_dump(mode="json")}
    part = out.with_name(out.name + files.PART)
    with ExitStack() as stack:
        try:
            with files.report_errors(out):
                stack.enter_context(files.hold(part))
        except BlockingIOError:
            raise UserError(f"{out} is being written by another process: wait for it") from None
        progress = Progress.load(out, origin)
        files.shorten(part, progress.bytes)
        iterator = iter(texts)
        augmenter.skip(islice(iterator, progress.lines))
        augmenter.counts = Counter(progress.counts)
        on_gpu = augmenter.translator.device.type == "cuda"
        size = GPU_WINDOW if on_gpu else WINDOW
        report(progress.lines, augmenter.counts)
        for window in windows(iterator, size, size):
            start = time.perf_counter()
            records = augmenter.pairs(window, progress.lines + 1)
            lines = "".join(documents.dumps(each, ensure_ascii=False) + "\n" for each in records)
            progress.bytes = files.append(part, lines.encode())
            progress.lines += len(window)
            progress.counts = dict(augmenter.counts)
            progress.seconds += time.perf_counter() - start
            progress.save(out, origin)
            report(progress.lines, augmenter.counts)
        if not augmenter.counts["pairs"]:
            raise UserError(f"no pair is left for {out}: {summarise(augmenter.counts)}")
        card = {**origin, "counts": progress.counts, "seconds": progress.seconds}
        card |= {"version": regard.__version__}
        files.write(card_path(out), documents.dumps(card, ensure_ascii=False, indent=1) + "\n")
        files.complete(part, out)
    files.remove(progress_path(out))
    return card


def progress_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.progress.json")


@dataclass
class Progress:
    """How far the pairs of a file are."""

    lines: int = 0
    """Texts that are done."""
    bytes: int = 0
    """Length of the file that holds their pairs."""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, out: Path, origin: dict[str, Any]) -> "Progress":
        """That of an interrupted command of the same origin; else the start."""
        path, part = progress_path(out), out.with_name(out.name + files.PART)
        if not path.is_file():
            return cls()
        record = documents.read(path, schemas.AugmentProgress)
        names = ("lines", "bytes", "seconds", "counts")
        saved = cls(**{name: record[name] for name in names})
        is_whole = part.is_file() and part.stat().st_size >= saved.bytes
        return saved if record["origin"] == origin and is_whole else cls()

    def save(self, out: Path, origin: dict[str, Any]) -> None:
        files.write(progress_path(out), documents.dumps({**vars(self), "origin": origin}))


def summarise(counts: Mapping[str, int]) -> str:
    """'120 pairs of 150 texts; left out: 20 texts that occurred before, 10 outputs that copy the text'"""
    left_out = [f"{counts[name]:,} {text}" for name, text in FAULTS.items() if counts.get(name)]
    rest = f"; left out: {', '.join(left_out)}" if left_out else ""
    return f"{counts.get('pairs', 0):,} pairs of {counts.get('texts', 0):,} texts{rest}"
