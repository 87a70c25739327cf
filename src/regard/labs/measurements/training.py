"""Short training runs for the labs: the library's own training loop in a temporary folder.

The training modules are imported inside the functions: the other labs and the worksheet sandbox do not
need them.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from regard.config import Config
from regard.display import Display
from regard.models import Model, build
from regard.terminal import Console
from regard.text.batch import BatchSampler, DeviceDataset, EncodedPairs
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair


def init_model(config: Config, tokenizers: TokenizerPair) -> Model:
    """Build the config's model with weights initialised from its seed."""
    torch.manual_seed(config.seed)
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    return build(config.model, *sizes, tokenizers.joint).eval()


def train(config: Config, data: Corpus) -> tuple[Model, TokenizerPair]:
    """Train the config's model on the CPU; return it after the last step, with its tokenizers."""
    from regard.training.loop import TrainingLoop
    from regard.training.step import TrainStep

    tokenizers = TokenizerPair.train(config.tokenizer, data["train"], data.symbols)
    model, table = init_model(config, tokenizers), config.training
    texts, val = (EncodedPairs.from_pairs(data[split], tokenizers) for split in ("train", "val"))
    batches = BatchSampler(texts, table.batch_tokens, table.batch_sentences, config.seed)
    with TemporaryDirectory() as folder, Display(Console(quiet=True)) as display:
        dataset = DeviceDataset(texts, "cpu")
        train_step = TrainStep(model, table, dataset, torch.float32, False, display.print)
        TrainingLoop(table, train_step, batches, val, Path(folder), display).run()
    return model.eval(), tokenizers
