"""Regard in Python: `load` or `train` a model, then call its methods.

model = regard.train("case", pairs=pairs)
model.translate(texts)    model.stream(texts)      model.score(pairs)    model.explain(pairs)
model.encode(texts)       model.evaluate(pairs)    model.to("cuda")      model.save(folder)
model.page()              model.translate(texts)[0].show()               (in a notebook)
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard import checksums, documents, files, loading, models, presets, translator
from regard.config import Config, DatasetData
from regard.devices import resolve_device
from regard.errors import NotFiniteError, UserError
from regard.intervention_checks import check_model, check_text
from regard.interventions import Intervention, parse
from regard.lines import windows
from regard.models import weights
from regard.models.batching import batch_rows
from regard.models.intervene import intervene
from regard.search import Hypothesis, ScoredPair, token_log_probs
from regard.terminal import Console
from regard.text import corpus, moses
from regard.text.batch import EncodedPairs
from regard.text.sequences import check_pairs, check_texts
from regard.text.tokenizer import EOS
from regard.translation import (
    Attention,
    Decoding,
    EncoderStates,
    Sampling,
    Translation,
    check_batch_tokens,
)
from regard.translator import BATCH_TOKENS


class Translator(translator.Translator):
    """A trained model with its tokenizers and config: the result of `regard.load` and `regard.train`."""

    def __repr__(self) -> str:
        """What it is: architecture, parameters, vocabularies, training data, device."""
        return f"Translator({describe(self)})"

    def to(self, device: str | torch.device) -> "Translator":
        """Move the model to a device, in place; return the translator."""
        name = resolve_device(str(device))
        if self.engine is not None and name != "cpu":
            raise UserError(f"the engine ctranslate2 runs on a CPU, not on {name}")
        if self.is_int8 and name != "cpu":
            raise UserError(f"int8 is for a CPU: load the model without int8 to use {name}")
        if self.is_bfloat16 and not name.startswith("cuda"):
            raise UserError(f"bfloat16 is for a GPU: load the model without bfloat16 to use {name}")
        if not self.is_int8:
            models.pack_weights(self.model.to(name))
        return self

    @property
    def is_bfloat16(self) -> bool:
        return next(self.model.parameters()).dtype == torch.bfloat16

    @property
    def is_int8(self) -> bool:
        engine_int8 = self.engine is not None and self.engine.is_int8
        return engine_int8 or isinstance(self.model.members[0].backend, models.Int8Backend)

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which must be new or empty: config, tokenizer, weights and result card.

        `load` reads exactly the same weights. Of an int8 model, the original float32 weights are saved.
        """
        if isinstance(self.model, models.Ensemble):
            raise UserError(
                "an ensemble is no run folder: keep those of its runs, and load them together again"
            )
        folder = Path(folder)
        if folder.exists() and files.list_files(folder):
            raise UserError(f"{folder} already exists: choose a new folder, or delete it first")
        files.write_folder(folder, self.write_files)

    def write_files(self, folder: Path) -> None:
        """The files of a run folder."""
        if isinstance(self.model, models.Pretrained):
            models.Architecture.from_model(self.model).save(folder)
        self.tokenizers.save(folder / "tokenizer.json")
        files.write(folder / "config.toml", self.config.to_toml())
        if self.card is not None:
            files.write(folder / "card.json", documents.dumps(self.card, indent=1) + "\n")
        record = {"files": checksums.of_run(folder)}
        weights.save(folder / "model.safetensors", weights.state_tensors(self.model), record)

    def page(self, *, height: int = 960, float32: bool = False, name: str = "model") -> None:
        """Display the page of this model in a notebook: translate, see attention, change it; no network.

        The model is inside, so the notebook's file grows by its size: weights are int8, unless `float32`.
        """
        from regard.page import build, notebook, pack

        packed = build.Pack(*pack.pack(self, name, float32))
        notebook.show(build.render([packed], title=f"{name} · Regard"), height)

    def stream(
        self,
        texts: Iterable[str],
        *,
        beam: int = 1,
        nbest: int = 1,
        sample: Sampling | None = None,
        attention: bool = False,
        batch_tokens: int | None = None,
        interventions: Iterable[Intervention | Mapping[str, Any]] | None = (),
    ) -> Iterator[Translation]:
        """`translate`, lazily: reads a window of texts at a time and yields their translations in order.

        So a file of any size needs the memory of a window. The outputs are those of `translate`.
        """
        decoding = Decoding(beam, nbest, sample, attention, batch_tokens, parse(interventions))
        check_texts(texts, "stream")
        self._check_interventions(decoding.interventions)
        return self._stream(texts, decoding)

    def _stream(self, texts: Iterable[str], decoding: Decoding) -> Iterator[Translation]:
        number = 1
        for window in windows(texts):
            for output in self.try_translate(window, decoding, number):
                if isinstance(output, UserError):
                    raise output
                yield output
            number += len(window)

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        attention: bool = False,
        batch_tokens: int | None = None,
        interventions: Iterable[Intervention | Mapping[str, Any]] | None = (),
    ) -> list[ScoredPair]:
        """Score given (source, target) pairs: the log-probability of each target token, EOS included.

        The scores of a test set sum to minus its loss in `evaluate`; an output of `translate` has its own
        `score`. A language model takes ("", text). `interventions` change the model for these pairs.
        """
        encoded = self.encode_pairs(pairs, "score")
        outputs = [
            (row, Hypothesis([*ids, EOS], 0.0, 0.0)) for row, ids in enumerate(encoded.target)
        ]
        all_weights: Sequence[list[Attention] | None] = [None] * len(encoded)
        with self._intervene(encoded, interventions):
            log_probs = self._log_probs(encoded, batch_tokens)
            if attention:
                all_weights = self.attention_weights(encoded, outputs, batch_tokens)
        return [
            ScoredPair(
                self.tokenizers.source.ids_to_tokens(encoded.source[row]),
                self.tokenizers.target.ids_to_tokens(hypothesis.ids),
                log_probs[row],
                all_weights[row],
            )
            for row, hypothesis in outputs
        ]

    def explain(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        batch_tokens: int | None = None,
        interventions: Iterable[Intervention | Mapping[str, Any]] | None = (),
    ) -> list[Translation]:
        """The attention weights and the score of given translations: (source, target) pairs.

        As `translate` returns them with beam search, with the given target as the output.
        """
        encoded = self.encode_pairs(pairs, "explain")
        penalty = self.config.search.length_penalty
        decoding = Decoding(attention=True, batch_tokens=batch_tokens)
        with self._intervene(encoded, interventions):
            scores = [math.fsum(values) for values in self._log_probs(encoded, batch_tokens)]
            hypotheses = [
                Hypothesis([*ids, EOS], score, score / (len(ids) + 1) ** penalty)
                for ids, score in zip(encoded.target, scores, strict=True)
            ]
            return self._translations(encoded, list(enumerate(hypotheses)), decoding)

    def _intervene(
        self,
        encoded: EncodedPairs,
        interventions: Iterable[Intervention | Mapping[str, Any]] | None,
    ) -> AbstractContextManager[None]:
        """The model with interventions on given pairs, if they fit."""
        parsed = parse(interventions)
        if parsed:
            check_model(parsed, self.model)
        for number, (target, source) in enumerate(encoded.lengths(), start=1):
            check_text(parsed, f"text {number}", source, target + 1, given=True)
        return intervene(self.model, parsed)

    def _log_probs(self, encoded: EncodedPairs, batch_tokens: int | None) -> list[list[float]]:
        check_batch_tokens(batch_tokens)
        log_probs = token_log_probs(self.model, encoded, batch_tokens)
        if not all(math.isfinite(value) for values in log_probs for value in values):
            raise NotFiniteError
        return log_probs

    def encode(
        self, texts: Iterable[str], *, batch_tokens: int | None = None
    ) -> list[EncoderStates]:
        """The encoder's states of each text, with its tokens (a decoder-only model's last layer).

        Of an ensemble, those of all members, side by side.
        """
        if self.config.is_language_model:
            raise UserError("encode gives states of a source, and a language model has none")
        check_texts(texts, "encode")
        check_batch_tokens(batch_tokens)
        sources = [self.encode_source(text, f"text {n}") for n, text in enumerate(texts, start=1)]
        encoded = EncodedPairs(sources, [[] for _ in sources])
        results: dict[int, EncoderStates] = {}
        with torch.inference_mode():
            for rows in batch_rows(self.model, encoded, batch_tokens or BATCH_TOKENS):
                memory = self.model.encode(*self._pad(sources, rows))
                for index, row in enumerate(rows):
                    states = memory.states[index, : len(sources[row])].float().cpu().clone()
                    tokens = self.tokenizers.source.ids_to_tokens(sources[row])
                    results[row] = EncoderStates(tokens, states)
        return [results[row] for row in range(len(sources))]

    def encode_pairs(
        self, pairs: Iterable[tuple[str, str]], caller: str = "encode_pairs"
    ) -> EncodedPairs:
        """(source, target) pairs as ids, if this model can read them."""
        checked = check_pairs(pairs, caller, may_be_empty=True)
        names = (f"text {number}" for number in range(1, len(checked) + 1))
        sources = [self.encode_source(s, n) for (s, _), n in zip(checked, names, strict=True)]
        targets = [moses.preprocess(t, self.config.data, "target") for _, t in checked]
        encoded = EncodedPairs(sources, [self.tokenizers.target.encode(t) for t in targets])
        self.check_lengths(encoded)
        return encoded

    def evaluate(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        beam: int | Sequence[int] = 1,
        batch_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Perplexity, and BLEU, chrF and exact match with each beam width: as `regard evaluate --json`.

        Each of its "results", one for a beam width, also has the "outputs". Pairs are raw text, to which
        `data.preprocess` is applied.
        """
        from regard.evaluation import evaluate  # sacreBLEU takes a while to import

        widths: list[Any] = list(beam) if isinstance(beam, Sequence) and beam else [beam]
        for width in widths:
            Decoding(width, batch_tokens=batch_tokens)  # raises an error if it is no beam width
        checked = moses.preprocess_pairs(check_pairs(pairs, "evaluate"), self.config.data)
        return evaluate(self, checked, widths, batch_tokens)


def describe(model: Translator) -> str:
    """'transformer, 7,846,912 parameters; bpe, 8,000 tokens for both sides; ...; on cpu'"""
    config, tokenizers = model.config, model.tokenizers
    source, target = (f"{side.vocab_size:,}" for side in (tokenizers.source, tokenizers.target))
    vocabulary = f"{source} for both sides" if tokenizers.joint else f"{source} and {target}"
    precision = "int8 " * model.is_int8 + "bfloat16 " * model.is_bfloat16
    kinds = config.model.kind
    if isinstance(model.model, models.Ensemble):
        kinds = f"ensemble of {len(model.model.members)} models"
    parts = [
        f"{kinds}, {model.model.parameter_count:,} parameters",
        f"{tokenizers.source.kind}, vocabulary {vocabulary}",
        describe_data(config.data),
        f"{precision}on {model.device}" + (" with CTranslate2" if model.engine is not None else ""),
    ]
    return "; ".join(filter(None, parts))


def describe_data(data: Any) -> str:
    """'trained on tatoeba-de-en, de to en'; for files, their name; nothing for pairs from Python."""
    languages = f", {data.source} to {data.target}" if isinstance(data, DatasetData) else ""
    train = getattr(data, "train", None)
    train = " and ".join(train) if isinstance(train, tuple) else train
    name = getattr(data, "name", None) or (train if isinstance(train, str) else None)
    return f"trained on {name}{languages}" if name else ""


def load(
    run: str | Path | Sequence[str | Path],
    device: str | torch.device = "cpu",
    *,
    int8: bool = False,
    bfloat16: bool = False,
    engine: str = "pytorch",
) -> Translator:
    """The translator of a run folder, with its best weights, packed for fast CPU inference.

    Several runs, `load(["runs/a", "runs/b"])` or `load("runs/a,runs/b")`, are an ensemble: see
    `regard.models.ensemble`.

    `int8` is for a CPU, `bfloat16` for a GPU: both are faster, and round more. `engine`: what searches for
    the outputs, "pytorch", "ctranslate2", or "ctranslate2:FOLDER", a folder that
    `regard export --to ctranslate2` wrote.
    """
    options = {"int8": int8, "bfloat16": bfloat16}
    return from_loaded(loading.load(run, device, **options, engine=engine))


def from_loaded(loaded: translator.Translator) -> Translator:
    """A translator with all methods."""
    return Translator(loaded.config, loaded.tokenizers, loaded.model, loaded.card, loaded.engine)


def train(
    config: str | Path | Mapping[str, Any] | Config,
    pairs: Iterable[tuple[str, str]] | None = None,
    validation: Iterable[tuple[str, str]] | None = None,
    *,
    run: str | Path | None = None,
    device: str = "auto",
    callbacks: Iterable[Callable[[dict[str, Any]], object]] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Translator:
    """Train a model and return it with its best weights.

    `config`: the name of a preset, a .toml file, settings as a dict ({"base": "case", "training.epochs":
    3}), or a `Config`. `pairs`, a list or an iterator of (source, target), replace its [data]; without
    `validation`, some of them are held out. `run`: the run folder to write, or to continue with `resume`;
    without one, nothing is kept but the model (see `Translator.save`). `callbacks` get each event of the
    training log, a dict; `quiet` prints no progress.
    """
    from regard import training

    if pairs is None and validation is not None:
        raise UserError("validation needs pairs: the data of a config has its own validation split")
    if not isinstance(run, str | Path | None):
        raise UserError(f"run is the folder to write, or None: got {run!r}")
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    if not all(callable(callback) for callback in callbacks):
        raise UserError(f"callbacks is a list of functions of one event, a dict: got {callbacks!r}")
    resolved = presets.resolve(config, {} if pairs is None else {"data.kind": "pairs"})
    data = None if pairs is None else corpus.from_pairs(pairs, validation, resolved.data.fraction)
    console, device = Console(quiet=quiet, soft_wrap=True), resolve_device(device)
    with TemporaryDirectory() if run is None else nullcontext(run) as folder:
        options = (Path(folder), device, resume, console)
        training.train(resolved, *options, data=data, callbacks=callbacks)
        return load(folder, device)
