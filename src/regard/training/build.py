"""The training loop of a run, built from its config, data and model."""

from dataclasses import dataclass, replace
from pathlib import Path

from regard.config import Config, FileData, Training
from regard.display import Display
from regard.evaluation import greedy_bleu
from regard.evaluation.metrics import headline_bleu
from regard.models import Model
from regard.text.batch import BatchSampler, Buckets, DeviceDataset, EncodedPairs
from regard.text.bpe_dropout import BpeDropout
from regard.text.corpus import Corpus
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import ShardedPairs, WindowDataset, WindowSampler
from regard.training.data import encode_split, load_bpe_dropout, tokenise_to_disk
from regard.training.device import select_dtype
from regard.training.distributed import World
from regard.training.loop import TrainingLoop
from regard.training.step import TrainStep, is_sharded
from regard.training.summary import describe_model, describe_regularisation, describe_schedule
from regard.translator import Translator

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class EncodedSplits:
    """What is trained and validated on, as text and as token ids."""

    train: tuple[Pairs, EncodedPairs] | ShardedPairs
    """On disk, there are only the ids."""
    val: tuple[Pairs, EncodedPairs]

    @classmethod
    def encode(cls, data: Corpus, tokenizers: TokenizerPair, display: Display) -> "EncodedSplits":
        train = (
            encode_split(data, "train", tokenizers, display)
            if data.stream is None
            else tokenise_to_disk(data.stream, tokenizers, display)
        )
        return cls(train, encode_split(data, "val", tokenizers, display))


def build_loop(
    config: Config,
    folder: Path,
    device: str,
    splits: EncodedSplits,
    tokenizers: TokenizerPair,
    model: Model,
    display: Display,
    world: World,
) -> TrainingLoop:
    """The training loop, before its first step."""
    settings, (val_pairs, val) = config.training, splits.val
    batches, dataset, bpe_dropout = load_training_pairs(config, splits, tokenizers, device)
    display.print(describe_model(config, tokenizers, model, len(batches.data)))
    devices = device if world.is_alone else f"{world.size} x {device.partition(':')[0]}"
    devices += " (sharded)" if is_sharded(settings, world) else ""
    display.print(describe_schedule(settings, batches, len(val), devices, folder))
    display.print_all(describe_regularisation(settings, bpe_dropout))
    dtype = select_dtype(settings.precision, device)
    cuda_graphs = device.startswith("cuda") and can_capture_graphs(settings, model)
    if cuda_graphs and is_sharded(settings, world):
        cuda_graphs = False
        display.print("CUDA graphs are off: they cannot hold the exchange of sharded parameters")
    train_step = TrainStep(model, settings, dataset, dtype, cuda_graphs, display.print, world)

    def compute_bleu(model: Model) -> float:
        translator = Translator(config, tokenizers, model)
        return greedy_bleu(translator, val_pairs, val, 4 * settings.batch_tokens)

    metric = compute_bleu if settings.checkpoint_metric == "bleu" else None
    bleu = (metric, headline_bleu(config.data))
    loop = TrainingLoop(settings, train_step, batches, val, folder, display, *bleu, world=world)
    loop.bpe_dropout = bpe_dropout
    return loop


def load_training_pairs(
    config: Config, splits: EncodedSplits, tokenizers: TokenizerPair, device: str
) -> tuple[BatchSampler | WindowSampler, DeviceDataset, BpeDropout | None]:
    """The batches of training pairs, the pairs on the device, and their BPE-dropout."""
    settings = config.training
    shapes = settings.bucket_shapes if device.startswith("cuda") else None
    is_random = settings.batching == "random"
    options = (settings.batch_tokens, settings.batch_sentences, config.seed, shapes, is_random)
    if isinstance(splits.train, ShardedPairs):
        assert isinstance(config.data, FileData)
        windows = WindowSampler(splits.train, *options, config.data.shuffle_buffer)
        return windows, WindowDataset(windows, device), None
    train_pairs, train = splits.train
    batches = BatchSampler(train, *options)
    bpe_dropout = load_bpe_dropout(config, train_pairs, tokenizers)
    if bpe_dropout is None:
        return batches, DeviceDataset(train, device), None
    batches = vary_lengths(batches, bpe_dropout)
    return batches, DeviceDataset(batches.data, device, bpe_dropout.capacity), bpe_dropout


def vary_lengths(sampler: BatchSampler, bpe_dropout: BpeDropout) -> BatchSampler:
    """The sampler of the first epoch with BPE-dropout; its shapes are those of every epoch."""
    data, buckets = bpe_dropout.epoch(0), None
    if sampler.bucket_shapes and not sampler.random:
        buckets = Buckets.choose(bpe_dropout.sampled_lengths, sampler.bucket_shapes)
    return replace(sampler, data=data, fixed_buckets=buckets)


def can_capture_graphs(settings: Training, model: Model) -> bool:
    """Can training steps on a GPU be CUDA graphs? There is one for each shape of a batch."""
    has_few_shapes = settings.batching == "bucketed"
    return settings.cuda_graphs and model.supports_cuda_graphs and has_few_shapes
