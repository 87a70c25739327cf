"""From text to a run folder. `run` calls the steps in order: data, model, warm start, loop, card."""

from regard.training.run import train

__all__ = ["train"]
