"""The engines on a trained run: sentences per second and BLEU on its test set, in interleaved rounds.

Every contender translates the same sentences with its own batches, and stops where it stops: unlike in
`decoding`, outputs are real, so they differ where the engines do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from regard.benchmarks.timing import Contender, Result, interleave
from regard.engines.folders import write_model
from regard.engines.shortlist import FREQUENT, make_shortlist
from regard.evaluation.metrics import score
from regard.loading import load
from regard.text import corpus
from regard.text.batch import EncodedPairs
from regard.text.hub import find_run
from regard.text.moses import is_preprocessed
from regard.translator import Translator


@dataclass(frozen=True)
class Engines:
    """Sentences per second of a trained run with each engine, and the BLEU that goes with it."""

    run_folder: Path
    rounds: int = 5
    beams: tuple[int, ...] = (1, 5)
    sentences: int = 1000
    shortlist: int = 20

    def run(self, report: Callable[[str], object] = lambda line: None) -> Result:
        """Time all engines; the baseline is CTranslate2 in int8."""
        folder = find_run(self.run_folder)
        pairs = corpus.load_split(load(folder).config.data, "test")[: self.sentences]
        with TemporaryDirectory() as temporary:
            translators = self.translators(folder, Path(temporary) / "shortlist")
            tasks = [
                Task(name, precision, translator, pairs, width)
                for width in self.beams
                for name, precision, translator in translators
            ]
            contenders = [
                Contender(task.name, task.label, task.run, task.precision, batch=len(pairs))
                for task in tasks
            ]
            interleave(contenders, self.rounds, len(pairs), None, report)
        bleu = "; ".join(
            f"{task.label} {task.name} {task.precision} {task.bleu():.2f}" for task in tasks
        )
        about = (
            f"translating {len(pairs)} test sentences of {self.run_folder} on the CPU, "
            f"{torch.get_num_threads()} threads, shortlist of {self.shortlist} candidates per token and "
            f"{FREQUENT} frequent tokens. BLEU: {bleu}"
        )
        return Result.of(about, "sentences/s", contenders)

    def translators(self, folder: Path, out: Path) -> list[tuple[str, str, Translator]]:
        """(name, precision, translator); the first is the baseline."""
        plain = load(folder)
        options = (plain.config, plain.tokenizers, plain.model, out, folder)
        write_model(*options, vmap=make_shortlist(plain.config, plain.tokenizers, self.shortlist))
        with_shortlist = load(folder, int8=True, engine=f"ctranslate2:{out}")
        return [
            ("ctranslate2", "int8", load(folder, int8=True, engine="ctranslate2")),
            ("ctranslate2, shortlist", "int8", with_shortlist),
            ("ctranslate2", "float32", load(folder, engine="ctranslate2")),
            ("pytorch", "float32", plain),
        ]


class Task:
    """One engine with one beam width."""

    def __init__(
        self,
        name: str,
        precision: str,
        translator: Translator,
        pairs: list[tuple[str, str]],
        width: int,
    ) -> None:
        self.name, self.precision, self.translator, self.width = name, precision, translator, width
        self.label = "greedy" if width == 1 else f"beam {width}"
        self.encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
        self.references = [target for _, target in pairs]
        self.ids: list[list[int]] = []

    def run(self) -> int:
        """Translate all sentences; return the number of tokens."""
        self.ids = [nbest[0].ids for nbest in self.translator.search(self.encoded, self.width)]
        return sum(map(len, self.ids))

    def bleu(self) -> float:
        outputs = [self.translator.tokenizers.target.decode(ids) for ids in self.ids]
        metric = "bleu_tokens" if is_preprocessed(self.translator.config.data) else "bleu"
        return score(metric, outputs, self.references)
