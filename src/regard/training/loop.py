"""Teacher forcing, step by step, so that a run killed at any moment can go on as if nothing was."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import config as choices
from regard.errors import UserError
from regard.evaluation import aggregate, likelihoods
from regard.models import Model, weights
from regard.text.batch import BatchSampler, BatchSpec, EncodedPairs
from regard.training import checkpoint
from regard.training.checkpoint import Progress
from regard.training.progress import Display
from regard.training.schedule import SCHEDULES, rate
from regard.training.update import Update

CHECK_EVERY = 20  # steps between two looks at whether the loss is still finite


@dataclass
class Loop:
    """One run in its folder. `run` trains to the end from wherever `progress` stands."""

    table: choices.Training
    update: Update
    train: BatchSampler
    val: EncodedPairs
    folder: Path
    display: Display
    bleu: Callable[[Model], float] | None = None
    """What judges weights, if not their validation loss."""
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.order: list[BatchSpec] = []
        self.board: Any = None

    @property
    def passes(self) -> float:
        """Passes over the training text so far."""
        return self.progress.epoch + self.progress.batch / max(len(self.order), 1)

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        steps = self.progress.step / self.table.min_steps if self.table.min_steps else 1.0
        return min(self.passes / self.table.epochs, steps, 1.0)

    def restore(self) -> None:
        """Stand where the last checkpoint stood; what was logged after it is cut off."""
        self.progress = checkpoint.restore(self.folder, self.update)
        with (self.folder / "metrics.jsonl").open("ab") as file:
            if file.tell() > self.progress.metrics_bytes:
                file.truncate(self.progress.metrics_bytes)

    def run(self) -> Progress:
        """Train until the epochs are over, or nothing better has come for too long."""
        place = self.progress
        self.order = self.train.epoch(place.epoch)
        self.since = (place.tokens, time.perf_counter())
        self.board = tensorboard(self.folder, place.step) if self.table.tensorboard else None
        while not place.finished:
            self.step()
            over = self.share >= 1.0
            if over or place.step % self.table.validate_every == 0:
                self.look(over)
        return place

    def step(self) -> None:
        """One batch."""
        place = self.progress
        cut = self.order[place.batch]
        self.update(cut, self.rate, place.step)
        place.step += 1
        place.tokens += self.train.count_tokens(cut)
        place.batch += 1
        over = place.batch == len(self.order)
        if over:
            place.epoch, place.batch = place.epoch + 1, 0
            self.order = self.train.epoch(place.epoch)
        # A GPU is not asked in the middle of an epoch: it would have to catch up first.
        if over or (place.step % CHECK_EVERY == 0 and not self.update.rate.is_cuda):
            mean = self.mean_loss()
            self.display.advance(self.share, f"step {place.step}  loss {mean:.3f}")

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        schedule = SCHEDULES[self.table.schedule]
        return rate(
            schedule,
            self.table.learning_rate,
            self.progress.step,
            self.table.warmup_steps,
            self.share,
        )

    def mean_loss(self) -> float:
        """Training loss since the last look; an error if it is no number any more."""
        mean = self.update.mean_loss()
        if not math.isfinite(mean):
            raise UserError(
                f"the training loss became {mean} before step {self.progress.step}: try a lower "
                f"training.learning_rate (now {self.table.learning_rate:g}), a longer "
                f"training.warmup_steps (now {self.table.warmup_steps}) or a smaller "
                f"training.grad_clip (now {self.table.grad_clip:g}). "
                "What was saved before is untouched."
            )
        return mean

    def look(self, over: bool) -> None:
        """Validate, log, keep the best weights, write a checkpoint."""
        place = self.progress
        train_loss = self.mean_loss()
        self.update.forget_loss()
        tokens, clock = self.since
        spent = time.perf_counter() - clock
        speed = (place.tokens - tokens) / spent
        place.seconds += spent
        val = aggregate(likelihoods(self.update.averaged, self.val, 2 * self.table.batch_tokens))
        if not math.isfinite(val.loss):
            raise UserError(f"the validation loss became {val.loss} at step {place.step}")
        bleu = self.bleu(self.update.averaged) if self.bleu else None
        score = -val.loss if bleu is None else bleu
        better = (score, -val.loss) > (place.score, -place.best_loss)  # BLEU is often 0 at first
        if better:
            place.score, place.best_loss, place.best_step = score, val.loss, place.step
            place.looks_since_best = 0
        else:
            place.looks_since_best += 1
        tired = self.table.patience is not None and place.looks_since_best >= self.table.patience
        place.finished = over or tired
        self.log(
            event="validation",
            step=place.step,
            epoch=round(self.passes, 4),
            train_loss=train_loss,
            loss=val.loss,
            perplexity=val.perplexity,
            token_accuracy=val.token_accuracy,
            **({} if bleu is None else {"bleu_lower": bleu}),
            rate=float(self.update.rate),
            tokens_per_second=speed,
            seconds=place.seconds,
        )
        mark = ("" if bleu is None else f"  BLEU {bleu:.2f}") + ("  best" if better else "")
        self.display.say(
            f"step {place.step:>6}  epoch {self.passes:5.2f}  "
            f"train {train_loss:.4f}  val {val.loss:.4f}  perplexity {val.perplexity:.3f}  "
            f"{speed:,.0f} tokens/s{mark}"
        )
        if tired and not over:
            self.display.say(f"nothing better in {place.looks_since_best} looks: stopping")
        if better:
            record = {"step": place.step, "loss": val.loss}
            best = weights.state_tensors(self.update.averaged)
            weights.save(self.folder / "model.safetensors", best, record)
        checkpoint.save(self.folder, place, self.update)
        self.since = (place.tokens, time.perf_counter())

    def log(self, **event: Any) -> None:
        """One line of metrics.jsonl, and a point on each TensorBoard curve if that is wanted."""
        with (self.folder / "metrics.jsonl").open("ab") as file:
            file.write((json.dumps(event) + "\n").encode())
            file.flush()
            self.progress.metrics_bytes = file.tell()
        if self.board:
            for name, value in event.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, event["step"])
            self.board.flush()


def tensorboard(folder: Path, step: int) -> Any:
    """A writer of event files; what an earlier sitting wrote beyond `step` is hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.tensorboard needs one more package: pip install 'regard[tensorboard]'"
        ) from None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
