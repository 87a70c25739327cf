"""transformers behind the same server, for the load test: a Marian model of the shape of a run.

    python -m regard.serve.peer serve RUN --port 0 [--max-batch N] [--window MILLISECONDS]

Its weights are random, so it does not know when to stop: it writes as many tokens as its source has.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard import api
from regard.benchmarks import peers
from regard.search import Hypothesis
from regard.serve import catalogue
from regard.serve.server import serve
from regard.serve.settings import Settings
from regard.text.batch import EncodedPairs, pad
from regard.text.vocabulary import EOS


class MarianTranslator(api.Translator):
    """The tokenizers of a run, and `generate` of transformers."""

    def __init__(self, loaded: api.Translator) -> None:
        super().__init__(loaded.config, loaded.tokenizers, loaded.model, loaded.card)
        model: Any = loaded.config.model
        shape = {
            "d_model": model.d_model,
            "d_ff": model.d_ff,
            "layers": model.encoder.layers,
            "heads": model.attention.heads,
            "vocab_size": loaded.tokenizers.source.vocab_size,
        }
        self.peer = peers.Transformers(shape, "cpu")

    def search(
        self, encoded: EncodedPairs, beam_size: int = 1, *options: Any, **more: Any
    ) -> list[list[Hypothesis]]:
        """One output for each source, as long as the longest of them."""
        source, mask = pad(encoded.source)
        length = source.shape[1]
        with torch.inference_mode():
            outputs = self.peer.model.generate(
                input_ids=source,
                attention_mask=mask.long(),
                num_beams=beam_size,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
            )
        return [[Hypothesis([*row, EOS], 0.0, 0.0)] for row in outputs[:, 1:].tolist()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--window", type=float, default=3.0)
    given = parser.parse_args(arguments)
    peers.check_installed()
    load = catalogue.load_model
    catalogue.load_model = lambda folders, settings: MarianTranslator(load(folders, settings))
    options: dict[str, Any] = {"port": given.port, "max_batch": given.max_batch}
    serve(Settings((given.run,), window=given.window / 1000, **options))


if __name__ == "__main__":
    main()
