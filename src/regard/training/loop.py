"""The training loop: steps, validation, early stopping, logging, and checkpoints for an exact resume."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard import documents, files
from regard.config import Training
from regard.display import Display
from regard.errors import RegardWarning, UserError
from regard.evaluation import Likelihood, aggregate, likelihoods
from regard.models import Model, weights
from regard.text.batch import BatchSampler, BatchSpec, EncodedPairs
from regard.text.bpe_dropout import BpeDropout
from regard.text.windows import WindowSampler
from regard.training import checkpoint, sharding, snapshots
from regard.training.checkpoint import Progress
from regard.training.distributed import ALONE, World
from regard.training.interrupt import Interrupted, catch_signals
from regard.training.schedule import SCHEDULES, learning_rate
from regard.training.step import TrainStep
from regard.training.writer import NoWriter, Writer

Callback = Callable[[dict[str, Any]], object]
"""Gets each event of metrics.jsonl."""
TENSORBOARD = "tensorboard"  # the folder of its events
CHECK_EVERY = 20  # steps between two checks that the loss is finite


@dataclass
class TrainingLoop:
    """The loop of one run, in its folder. `run` trains from `progress` to the end."""

    settings: Training
    train_step: TrainStep
    sampler: BatchSampler | WindowSampler
    val: EncodedPairs
    folder: Path
    display: Display
    compute_bleu: Callable[[Model], float] | None = None
    """Computes validation BLEU, if that selects the best weights; None: the validation loss does."""
    bleu_name: str = "bleu_lower"
    """Which BLEU that is, in the log."""
    progress: Progress = field(default_factory=Progress)
    bpe_dropout: BpeDropout | None = None
    """Segments the training data anew in each epoch."""
    callbacks: tuple[Callback, ...] = ()
    file_checksums: Mapping[str, str] = field(default_factory=dict)
    """Of the files that the weights belong to: see `regard.checksums`."""
    world: World = ALONE
    """The processes that train this model: all call the same methods, and process 0 alone writes."""

    def __post_init__(self) -> None:
        self.batches: Sequence[BatchSpec] = []
        self.tensorboard: Any = None
        make_writer = Writer if self.world.is_main else NoWriter
        self.writer = make_writer(self.train_step.device)

    @property
    def epochs_done(self) -> float:
        """Epochs so far, with the fraction of the current one."""
        return self.progress.epoch + self.progress.batch / max(len(self.batches), 1)

    @property
    def fraction_done(self) -> float:
        """Fraction of the run that is done, from 0 to 1."""
        min_steps = self.settings.min_steps
        steps = self.progress.step / min_steps if min_steps else 1.0
        return min(self.epochs_done / self.settings.epochs, steps, 1.0)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return learning_rate(
            SCHEDULES[self.settings.schedule],
            self.settings.learning_rate,
            self.progress.step,
            self.settings.warmup_steps,
            self.fraction_done,
        )

    def restore(self) -> None:
        """Continue from the last checkpoint; events that were logged after it are deleted."""
        self.progress = checkpoint.restore(self.folder, self.train_step)
        if self.world.is_main:
            self.shorten_log()

    def shorten_log(self) -> None:
        """Delete what was logged after the checkpoint."""
        path, length = self.folder / "metrics.jsonl", self.progress.metrics_bytes
        saved = path.read_bytes() if path.is_file() else b""
        if len(saved) < length:
            length = saved.rfind(b"\n") + 1  # else the next event would continue half a line
            warnings.warn(
                f"{path} has lost events: it is shorter than when the checkpoint was saved. Training goes on",
                RegardWarning,
                stacklevel=2,
            )
        files.shorten(path, length)

    def run(self) -> Progress:
        """Train until the last epoch is done or early stopping ends the run."""
        progress = self.progress
        self.start_epoch()
        if progress.batch >= len(self.batches):
            raise UserError(
                f"{self.folder / checkpoint.FILE} does not match this run: {progress.batch:,} batches of an "
                f"epoch are done, and an epoch has {len(self.batches):,}"
            )
        self.start_clock()
        self.display.update(self.fraction_done, f"step {progress.step}")
        if self.settings.tensorboard and self.world.is_main:
            self.tensorboard = open_tensorboard(self.folder, progress.step)
        with closing(self.writer), catch_signals(tell=self.world.is_alone) as signals:
            while not progress.finished:
                self.step()
                is_last = self.fraction_done >= 1.0
                stop = self.world.highest(signals.received or 0)
                if is_last or progress.step % self.settings.validate_every == 0:
                    self.validate(is_last)
                elif stop:
                    self.save_checkpoint()
                if stop:
                    if not self.world.is_alone:
                        self.display.print(f"stopped after step {progress.step}, with a checkpoint")
                    raise Interrupted(stop)
        return progress

    def start_epoch(self) -> None:
        """The batches of the current epoch; with BPE-dropout, its segmentations on the device, too."""
        epoch = self.progress.epoch
        if self.bpe_dropout is not None:
            assert isinstance(self.sampler, BatchSampler)  # words of text on disk are not indexed
            data = self.bpe_dropout.epoch(epoch)
            self.train_step.data.update(data)
            self.sampler = replace(self.sampler, data=data)
        self.batches = self.sampler.epoch(epoch)

    def step(self) -> None:
        """One optimizer step, on the next batches; the last step of an epoch may have fewer."""
        progress = self.progress
        end = progress.batch + self.settings.accumulation_steps
        batches = self.batches[progress.batch : end]
        self.world.seed_step(self.sampler.seed, progress.step)
        self.train_step(batches, self.learning_rate, progress.step)
        progress.step += 1
        progress.tokens += sum(self.sampler.count_tokens(batch) for batch in batches)
        progress.batch += len(batches)
        epoch_ends = progress.batch == len(self.batches)
        if epoch_ends:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            self.start_epoch()
        # On a GPU only at the end of an epoch: reading the loss waits for all steps launched so far.
        on_gpu = self.train_step.learning_rate.is_cuda
        if epoch_ends or (progress.step % CHECK_EVERY == 0 and not on_gpu):
            loss = self.mean_loss()
            self.display.update(self.fraction_done, f"step {progress.step}  loss {loss:.3f}")

    def mean_loss(self) -> float:
        """Mean training loss since the last validation; an error if it is not finite."""
        loss = self.train_step.mean_loss()
        if not math.isfinite(loss):
            raise UserError(
                f"the training loss became {loss} before step {self.progress.step}: try a lower "
                f"training.learning_rate (now {self.settings.learning_rate:g}), a longer "
                f"training.warmup_steps (now {self.settings.warmup_steps}) or a smaller "
                f"training.grad_clip (now {self.settings.grad_clip:g}). "
                "The checkpoints saved so far are unchanged."
            )
        return loss

    def validate(self, is_last: bool) -> None:
        """Validate, log, save the weights if they are the best, write a checkpoint."""
        progress = self.progress
        train_loss = self.mean_loss()
        self.train_step.reset_loss()
        tokens_per_second = self.stop_clock()
        with self.train_step.validated_model() as model:
            likelihood, bleu = self.world.compute_on_main(lambda: self.validate_model(model))
            tensors = weights.saved_tensors(model)
        is_best = self.compare_with_best(likelihood.loss, bleu)
        patience = self.settings.patience
        stop_early = patience is not None and progress.validations_since_best >= patience
        progress.finished = is_last or stop_early
        if self.world.is_main:
            self.log_validation(train_loss, likelihood, bleu, tokens_per_second)
        self.print_validation(train_loss, likelihood, bleu, tokens_per_second, is_best)
        if stop_early and not is_last:
            count = progress.validations_since_best
            self.display.print(f"early stopping: no improvement in {count} validations")
        record = {"step": progress.step, "loss": likelihood.loss}
        record |= {"files": dict(self.file_checksums)}
        if is_best:
            self.writer.save(self.folder / "model.safetensors", tensors, record)
        count = self.settings.average_checkpoints
        if count is not None:
            earlier = progress.averaged_steps
            if self.world.is_main:
                snapshots.save(self.folder, self.writer, tensors, record, earlier)
            progress.averaged_steps = [*earlier, progress.step][-count:]
        self.write_checkpoint()
        self.start_clock()

    def save_checkpoint(self) -> None:
        """Write a checkpoint between two validations; an error if the weights are not finite."""
        self.mean_loss()
        finite = (p.isfinite().all() for p in self.train_step.model.parameters())
        if not all(bool(sharding.gather(flag)) for flag in finite):
            raise UserError(
                f"the weights became infinite or nan at step {self.progress.step}: "
                "the checkpoints saved so far are unchanged"
            )
        self.stop_clock()
        self.write_checkpoint()
        self.start_clock()

    def write_checkpoint(self) -> None:
        arguments = (self.train_step, self.writer, self.file_checksums)
        checkpoint.save(self.folder, self.progress, *arguments)

    def start_clock(self) -> None:
        self.clock = (self.progress.tokens, time.perf_counter())

    def stop_clock(self) -> float:
        """Add the time since `start_clock` to the training time; return the tokens per second."""
        tokens, start = self.clock
        seconds = time.perf_counter() - start
        self.progress.seconds += seconds
        return (self.progress.tokens - tokens) / seconds

    def validate_model(self, model: Model) -> tuple[Likelihood, float | None]:
        """(likelihood of the validation split; its BLEU, if that selects the best weights)

        An error if the loss is not finite.
        """
        max_tokens = 2 * self.settings.batch_tokens
        likelihood = aggregate(likelihoods(model, self.val, max_tokens))
        if not math.isfinite(likelihood.loss):
            raise UserError(
                f"the validation loss became {likelihood.loss} at step {self.progress.step}"
            )
        return likelihood, self.compute_bleu(model) if self.compute_bleu else None

    def compare_with_best(self, loss: float, bleu: float | None) -> bool:
        """Whether these are the best weights so far, by BLEU or loss; updates `progress`."""
        progress = self.progress
        score = -loss if bleu is None else bleu
        # The loss breaks ties: BLEU is often 0 at first.
        is_best = (score, -loss) > (progress.best_score, -progress.best_loss)
        if is_best:
            progress.best_score, progress.best_loss = score, loss
            progress.best_step, progress.validations_since_best = progress.step, 0
        else:
            progress.validations_since_best += 1
        return is_best

    def log_validation(
        self,
        train_loss: float,
        likelihood: Likelihood,
        bleu: float | None,
        tokens_per_second: float,
    ) -> None:
        self.log(
            event="validation",
            step=self.progress.step,
            epoch=round(self.epochs_done, 4),
            train_loss=train_loss,
            loss=likelihood.loss,
            perplexity=likelihood.perplexity,
            token_accuracy=likelihood.token_accuracy,
            **({} if bleu is None else {self.bleu_name: bleu}),
            learning_rate=float(self.train_step.learning_rate),
            tokens_per_second=tokens_per_second,
            seconds=self.progress.seconds,
        )

    def print_validation(
        self,
        train_loss: float,
        likelihood: Likelihood,
        bleu: float | None,
        tokens_per_second: float,
        is_best: bool,
    ) -> None:
        self.display.update(self.fraction_done, f"step {self.progress.step}")
        suffix = ("" if bleu is None else f"  BLEU {bleu:.2f}") + ("  best" if is_best else "")
        left = "" if self.progress.finished else self.display.time_left
        self.display.print(
            f"step {self.progress.step:>6}  epoch {self.epochs_done:5.2f}  "
            f"train {train_loss:.4f}  val {likelihood.loss:.4f}  perplexity {likelihood.perplexity:.3f}  "
            f"{tokens_per_second:,.0f} tokens/s{suffix}{f'  {left}' if left else ''}"
        )

    def log(self, **event: Any) -> None:
        """Append an event to metrics.jsonl, and pass it on to TensorBoard, if enabled, and the callbacks."""
        line = (documents.dumps(event) + "\n").encode()
        self.progress.metrics_bytes = files.append(self.folder / "metrics.jsonl", line)
        if self.tensorboard:
            with files.report_errors(self.folder / TENSORBOARD):
                prefix = "" if event["event"] == "validation" else f"{event['event']}/"
                for name, value in event.items():
                    if isinstance(value, float):
                        self.tensorboard.add_scalar(prefix + name, value, event["step"])
                self.tensorboard.flush()
        for callback in self.callbacks:
            callback(event)


def open_tensorboard(folder: Path, step: int) -> Any:
    """A TensorBoard writer that hides what an earlier session wrote after `step`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.tensorboard needs one more package: pip install 'regard[tensorboard]'"
        ) from None
    with files.report_errors(folder / TENSORBOARD):
        return SummaryWriter(folder / TENSORBOARD, purge_step=step + 1)
