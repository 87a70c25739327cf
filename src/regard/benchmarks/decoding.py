"""Decoding speed: sentences per second of a Transformer, compared with other implementations.

All contenders have the same shape, random weights, sources of the same lengths sorted into equal batches,
and generate exactly `steps` tokens. Encoding is timed, tokenization is not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import config
from regard.benchmarks import peers
from regard.benchmarks.lengths import load_lengths
from regard.benchmarks.plain import plain_beam, plain_greedy
from regard.benchmarks.timing import Contender, Result, interleave
from regard.models import Model, build, pack_weights, quantize_int8
from regard.models.precision import cast_parameters
from regard.search import beam, greedy
from regard.search.graphs import find_graphs
from regard.search.run import SOURCE_STEP, encode
from regard.text.batch import pad
from regard.text.tokenizer import EOS
from regard.training.device import use_device

BASELINE = "plain loop"
Shape = dict[str, int]
SHAPE: Shape = {"d_model": 256, "layers": 4, "heads": 8, "d_ff": 1024, "vocab_size": 8000}


@dataclass(frozen=True)
class Decoding:
    """Sentences per second of encoder, decoder and search, compared with a plain loop and other toolkits."""

    rounds: int = 5
    batch: int = 128
    beams: tuple[int, ...] = (1, 5)
    device: str = "cpu"
    peers: bool = False
    sentences: int = 1000
    steps: int = 16
    shape: Shape = field(default_factory=lambda: dict(SHAPE))

    def run(self, report: Callable[[str], object] = lambda line: None) -> Result:
        """Time all contenders and compare them."""
        if self.peers:
            peers.check_installed()
        work = Workload(self.batches(), self.steps, self.device)
        contenders = [one for width in self.beams for one in self.contenders(work, width)]
        with torch.inference_mode(), use_device(self.device):
            interleave(contenders, self.rounds, self.sentences, self.sentences * self.steps, report)
        about = (
            f"decoding {self.sentences} sentences, {self.steps} tokens each, on {self.device}, "
            f"{torch.get_num_threads()} threads, {load_lengths('test', self.sentences)[0]}"
        )
        return Result.of(about, "sentences/s", contenders)

    def batches(self) -> list[list[list[int]]]:
        """Random sources with the lengths of real ones, sorted by length, in batches."""
        generator = torch.Generator().manual_seed(0)
        id_range = (4, self.shape["vocab_size"] - 1)  # no special tokens
        rows = [
            torch.randint(*id_range, (length,), generator=generator).tolist()
            for length, _ in sorted(load_lengths("test", self.sentences)[1])
        ]
        return [rows[start : start + self.batch] for start in range(0, len(rows), self.batch)]

    def contenders(self, work: "Workload", width: int) -> Iterator[Contender]:
        """The contenders for one beam width."""
        task = "greedy" if width == 1 else f"beam {width}"
        model = self.model()

        def contender(name: str, run: Callable[[], int], precision: str = "float32") -> Contender:
            return Contender(name, task, run, precision, self.batch)

        yield contender(BASELINE, lambda: work.run_plain(model, width))
        yield contender("regard", lambda: work.run_regard(model, width))
        if self.device == "cpu":
            quantized = suppress_eos(quantize_int8(self.model()))
            yield contender("regard", lambda: work.run_regard(quantized, width), "int8")
        if self.device.startswith("cuda"):
            half = suppress_eos(cast_parameters(self.model(), torch.bfloat16))
            yield contender("regard", lambda: work.run_regard(half, width), "bfloat16")
        if self.peers:
            transformers = peers.Transformers(self.shape, self.device)
            yield contender("transformers", lambda: transformers(work.batches, width, self.steps))
            for precision in ("float32", "int8"):
                translator = peers.CTranslate2(transformers, precision)
                yield contender(
                    "ctranslate2",
                    lambda peer=translator: peer(work.batches, width, self.steps),
                    precision,
                )

    def model(self) -> Model:
        """Regard's Transformer with random weights and EOS suppressed."""
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
        vocab_size = self.shape["vocab_size"]
        model = build(table, vocab_size, vocab_size, joint=False).eval().to(self.device)
        return suppress_eos(pack_weights(model))


def suppress_eos(model: Model) -> Model:
    """Patch the model so that EOS is never generated."""
    original = type(model).project

    def project(features: Tensor) -> Tensor:
        logits = original(model, features)
        logits[..., EOS] = -1e9
        return logits

    model.project = project
    return model


@dataclass(frozen=True)
class Workload:
    """The batches to decode; each method decodes them and returns the number of generated tokens."""

    batches: list[list[list[int]]]
    steps: int
    device: str

    def run_regard(self, model: Model, width: int) -> int:
        tokens = 0
        for source, mask in self.padded(SOURCE_STEP if self.device.startswith("cuda") else 1):
            graphs = find_graphs(model, source.device) or False
            memory = encode(model, source, mask, graphs)
            limits = source.new_full((len(source),), self.steps)
            if width == 1:
                outputs = greedy(model, memory, limits, cuda_graphs=graphs)
            else:
                nbest_lists = beam(model, memory, limits, width, cuda_graphs=graphs)
                outputs = [nbest[0] for nbest in nbest_lists]
            tokens += sum(len(output.ids) for output in outputs)
        return tokens

    def run_plain(self, model: Model, width: int) -> int:
        tokens = 0
        for source, mask in self.padded():
            if width == 1:
                ids = plain_greedy(model, source, mask, self.steps)
            else:
                ids = plain_beam(model, source, mask, self.steps, width)
            tokens += sum(len(row) for row in ids.tolist())
        return tokens

    def padded(self, multiple: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.batches:
            source, mask = pad(rows, multiple)
            yield source.to(self.device), mask.to(self.device)
