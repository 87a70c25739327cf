"""Does the page's engine translate as Python does? Run both on test sentences, and compare.

    python -m tests.page.check de-en runs/mine           50 sentences of each run's test split
    python -m tests.page.check de-en --sentences 1000

Float32 must give equal tokens, but for near-ties, and equal attention weights. For int8 it reports the share
of equal outputs, and BLEU. Exit code 1 if float32 differs. Needs Node, and the data of the runs.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import torch

import regard
from regard.api import Translator
from regard.evaluation.metrics import score_corpus
from regard.text import corpus
from regard.translation import Translation
from tests.page.engine import Engine, to_tensor

TIE = 1e-4  # outputs whose scores differ by less may be either
ATTENTION = 1e-4


@dataclass
class Comparison:
    """What differed, over all sentences."""

    equal: int = 0
    ties: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    attention_gap: float = 0.0
    score_gap: float = 0.0
    outputs: list[str] = field(default_factory=list)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, text: str, ours: dict, expected: Translation) -> None:
        self.outputs.append(ours["text"])
        for part, value in ours["milliseconds"].items():
            self.milliseconds.setdefault(part, []).append(value)
        gap = abs(ours["normalised"] - expected.normalised)
        if ours["target"] != expected.target:
            description = (
                f"{text!r}: {ours['text']!r}, not {expected.text!r} (scores differ by {gap:.1e})"
            )
            (self.ties if gap < TIE else self.different).append(description)
            return
        self.equal += 1
        self.score_gap = max(self.score_gap, gap)
        for mechanism, weights in expected.attention.items():
            difference = (to_tensor(ours["attention"][mechanism]) - weights).abs().max()
            self.attention_gap = max(self.attention_gap, float(difference))

    @property
    def is_equal(self) -> bool:
        return not self.different and self.attention_gap < ATTENTION


def compare(
    engine: Engine, model: str, python: Sequence[Translation], texts: Sequence[str], beam: int
) -> Comparison:
    comparison = Comparison()
    for text, expected in zip(texts, python, strict=True):
        request = {"model": model, "text": text, "decoding": {"beam": beam}}
        comparison.add(text, engine.request("translate", **request), expected)
    return comparison


def check(run: str, sentences: int, beams: Sequence[int]) -> bool:
    """Compare one run; returns whether float32 is equal."""
    python = regard.load(run)
    pairs = corpus.load(python.config.data, ["test"])["test"][:sentences]
    texts, references = [source for source, _ in pairs], [target for _, target in pairs]
    engine = Engine()
    sizes = {
        form: engine.load(python, form, float32=form == "float32") for form in ("float32", "int8")
    }
    say(f"{run}: {len(pairs)} sentences, {sizes['int8']['parameters']:,} parameters")
    results = [check_beam(engine, python, texts, references, beam) for beam in beams]
    engine.close()
    return all(results)


def check_beam(
    engine: Engine, python: Translator, texts: list[str], references: list[str], beam: int
) -> bool:
    start = time.perf_counter()
    expected = python.translate(texts, beam=beam)
    seconds = time.perf_counter() - start
    bleu = score_corpus([output.text for output in expected], references)["bleu"]
    say(f"  beam {beam}: Python, BLEU {bleu:.2f}, {1000 * seconds / len(texts):.0f} ms a sentence")
    is_equal = True
    for form in ("float32", "int8"):
        result = compare(engine, form, expected, texts, beam)
        bleu = score_corpus(result.outputs, references)["bleu"]
        times = ", ".join(
            f"{part} {median(values):.0f} ms (mean {mean(values):.0f})"
            for part, values in result.milliseconds.items()
        )
        say(
            f"  beam {beam}: {form}, {result.equal} of {len(texts)} outputs equal, {len(result.ties)} "
            f"near-ties, scores to {result.score_gap:.0e}, attention to {result.attention_gap:.0e}, "
            f"BLEU {bleu:.2f}; {times}"
        )
        if form == "float32":
            is_equal = result.is_equal
            for kind, found in (("near-tie", result.ties), ("DIFFERENT", result.different)):
                for description in found:
                    say(f"    {kind}: {description}")
    return is_equal


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", help="run folders, or shipped models")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--beam", default="1,5", help="beam sizes, 1 for greedy search")
    options = parser.parse_args()
    torch.set_num_threads(1)
    beams = [int(size) for size in options.beam.split(",")]
    results = [check(run, options.sentences, beams) for run in options.runs]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
