"""From text to a run folder: `objective`, `schedule`, `loop`, `checkpoint`, and `run` around them."""

from regard.training.run import train

__all__ = ["train"]
