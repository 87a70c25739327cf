"""What `regard train` says before the first step: data, model, length of the run, device and folder."""

import math
from pathlib import Path

from regard.config import Config, Training
from regard.models import Model
from regard.text.batch import BatchSampler
from regard.text.bpe_dropout import BpeDropout
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import WindowSampler


def describe_model(config: Config, tokenizers: TokenizerPair, model: Model, count: int) -> str:
    """One line: the training data, the vocabulary and the parameters."""
    noun = "sentences" if config.is_language_model else "pairs"
    source, target = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    vocabulary = f"{source:,}" if tokenizers.joint else f"{source:,} and {target:,}"
    is_partial = model.trainable_count < model.parameter_count
    trainable = f" ({model.trainable_count:,} trainable)" if is_partial else ""
    return (
        f"{count:,} training {noun}, vocabulary {vocabulary}, "
        f"{config.model.kind} model with {model.parameter_count:,} parameters{trainable}"
    )


def describe_schedule(
    settings: Training,
    sampler: BatchSampler | WindowSampler,
    val_count: int,
    device: str,
    folder: Path,
) -> str:
    """One line: steps and epochs, validations, early stopping, the device and the run folder."""
    per_epoch = math.ceil(len(sampler.epoch(0)) / settings.accumulation_steps)
    steps = max(math.ceil(settings.epochs * per_epoch), settings.min_steps)
    epochs = f"{steps / per_epoch:.3g}"
    length = f"about {steps:,} steps ({epochs} epoch{'s' * (epochs != '1')})"
    patience = settings.patience
    stop = f", at most: stops after {patience} without improvement" if patience else ""
    return (
        f"{length} on {device}, validated on {val_count:,} every {settings.validate_every:,}{stop}; "
        f"the run goes to {folder}"
    )


def describe_regularisation(settings: Training, bpe_dropout: BpeDropout | None) -> list[str]:
    """One line with what is on of R-Drop, BPE-dropout and checkpoint averaging; none if nothing is."""
    parts = []
    if settings.r_drop:
        parts.append(f"R-Drop {settings.r_drop:g} (two passes over each batch)")
    if bpe_dropout is not None:
        parts.append(
            f"BPE-dropout {bpe_dropout.dropout:g} ({bpe_dropout.words:,} words, sentences "
            f"{bpe_dropout.growth:.0%} longer)"
        )
    if settings.average_checkpoints:
        parts.append(f"average of the last {settings.average_checkpoints} checkpoints")
    return [f"regularisation: {', '.join(parts)}"] if parts else []
