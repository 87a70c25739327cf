"""How many sentences a second does a Transformer decode, and how many with other tools?

All sides have the same shape, random weights, the lengths of the same sentences, equal batches, sorted by
length, and say exactly `steps` tokens. Encoding counts, tokenising does not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import config
from regard.benchmarks import peers
from regard.benchmarks.lengths import lengths
from regard.benchmarks.plain import plain_beam, plain_greedy
from regard.benchmarks.timing import Result, Side, interleave
from regard.models import Model, build, int8, packed
from regard.search import beam, greedy
from regard.text.batch import pad
from regard.text.tokenizer import END

BASELINE = "plain loop"
Shape = dict[str, int]
SHAPE: Shape = {"d_model": 256, "layers": 4, "heads": 8, "d_ff": 1024, "vocabulary": 8000}


@dataclass(frozen=True)
class Decoding:
    """Sentences a second through encoder, decoder and search, beside a plain loop and other tools."""

    rounds: int = 5
    batch: int = 128
    beams: tuple[int, ...] = (1, 5)
    device: str = "cpu"
    peers: bool = False
    sentences: int = 1000
    steps: int = 16
    shape: Shape = field(default_factory=lambda: dict(SHAPE))

    def run(self, report: Callable[[str], object] = lambda line: None) -> Result:
        """Time every side and compare."""
        work = Work(self.batches(), self.steps, self.device)
        sides = [side for width in self.beams for side in self.sides(work, width, report)]
        with torch.inference_mode():
            interleave(sides, self.rounds, self.sentences, self.sentences * self.steps, report)
        about = (
            f"decoding {self.sentences} sentences, {self.steps} tokens each, on {self.device}, "
            f"{torch.get_num_threads()} threads, {lengths('test', self.sentences)[0]}"
        )
        return Result.of(about, "sentences/s", sides)

    def batches(self) -> list[list[list[int]]]:
        """Random sources of true lengths, sorted, in batches."""
        random = torch.Generator().manual_seed(0)
        ordinary = (4, self.shape["vocabulary"] - 1)
        rows = [
            torch.randint(*ordinary, (length,), generator=random).tolist()
            for length, _ in sorted(lengths("test", self.sentences)[1])
        ]
        return [rows[start : start + self.batch] for start in range(0, len(rows), self.batch)]

    def sides(self, work: "Work", width: int, report: Callable[[str], object]) -> Iterator[Side]:
        """What is compared, for one width of the beam."""
        task = "greedy" if width == 1 else f"beam {width}"
        model = self.model()

        def side(name: str, run: Callable[[], int], precision: str = "float32") -> Side:
            return Side(name, task, run, precision, self.batch)

        yield side(BASELINE, lambda: work.plain(model, width))
        yield side("regard", lambda: work.ours(model, width))
        if self.device == "cpu":
            rounded = endless(int8(self.model()))
            yield side("regard", lambda: work.ours(rounded, width), "int8")
        if self.peers:
            peers.install(report)
            transformers = peers.Transformers(self.shape, self.device)
            yield side("transformers", lambda: transformers(work.batches, width, self.steps))
            for precision in ("float32", "int8"):
                translator = peers.CTranslate2(transformers, precision)
                yield side(
                    "ctranslate2",
                    lambda side=translator: side(work.batches, width, self.steps),
                    precision,
                )

    def model(self) -> Model:
        """Ours, that never ends by itself."""
        layers = {"layers": self.shape["layers"]}
        table = config.Transformer.model_validate(
            {
                "kind": "transformer",
                "d_model": self.shape["d_model"],
                "d_ff": self.shape["d_ff"],
                "attention": {"heads": self.shape["heads"]},
                "encoder": layers,
                "decoder": layers,
            }
        )
        torch.manual_seed(0)
        vocabulary = self.shape["vocabulary"]
        model = build(table, vocabulary, vocabulary, joint=False).eval().to(self.device)
        return endless(packed(model))


def endless(model: Model) -> Model:
    """The model, to which the end is impossible."""
    plain = type(model).project

    def project(features: Tensor) -> Tensor:
        logits = plain(model, features)
        logits[..., END] = -1e9
        return logits

    model.project = project
    return model


@dataclass(frozen=True)
class Work:
    """The batches, and our ways to decode them; each gives the number of tokens it made."""

    batches: list[list[list[int]]]
    steps: int
    device: str

    def ours(self, model: Model, width: int) -> int:
        made = 0
        for source, mask in self.padded():
            memory, limits = model.encode(source, mask), source.new_full((len(source),), self.steps)
            if width == 1:
                found = greedy(model, memory, limits)
            else:
                found = [best[0] for best in beam(model, memory, limits, width)]
            made += sum(len(output.ids) for output in found)
        return made

    def plain(self, model: Model, width: int) -> int:
        made = 0
        for source, mask in self.padded():
            if width == 1:
                ids = plain_greedy(model, source, mask, self.steps)
            else:
                ids = plain_beam(model, source, mask, self.steps, width)
            made += sum(len(row) for row in ids.tolist())
        return made

    def padded(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.batches:
            source, mask = pad(rows)
            yield source.to(self.device), mask.to(self.device)
