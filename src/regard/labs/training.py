"""Short trainings for the labs: the library's own loop, in a folder that is thrown away.

Training and metrics are imported where they are used: who reads or runs the other labs, or answers a
worksheet behind its fence, needs none of them.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from regard.config import Config
from regard.models import Model, build
from regard.text.batch import Batches, Encoded, Resident
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair


def init_model(config: Config, tokenizers: TokenizerPair) -> Model:
    """The model that a config asks for, as its seed draws it."""
    torch.manual_seed(config.seed)
    sizes = tokenizers.source.size, tokenizers.target.size
    return build(config.model, *sizes, tokenizers.joint).eval()


def train(config: Config, data: Corpus) -> tuple[Model, TokenizerPair]:
    """The same after the last step of its training on a CPU, and how it reads text."""
    from regard.training.loop import Loop
    from regard.training.progress import Display
    from regard.training.update import Update

    tokenizers = TokenizerPair.learn(config.tokenizer, data["train"], data.symbols)
    model, table = init_model(config, tokenizers), config.training
    texts, val = (Encoded.of(data[split], tokenizers) for split in ("train", "val"))
    batches = Batches(texts, table.batch_tokens, table.batch_sentences, config.seed)
    with TemporaryDirectory() as folder, Display(Console(quiet=True)) as display:
        update = Update(model, table, Resident(texts, "cpu"), torch.float32, False, display.say)
        Loop(table, update, batches, val, Path(folder), display).run()
    return model.eval(), tokenizers
