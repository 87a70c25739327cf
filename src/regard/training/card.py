"""The result card: config, data checksums, versions, device and figures of a run."""

import platform
from pathlib import Path
from typing import Any

import numpy
import torch

import regard
from regard import documents, files
from regard.config import Config
from regard.evaluation.metrics import headline_bleu
from regard.models import Model
from regard.text.corpus import Corpus
from regard.training.checkpoint import Progress


def build_card(
    config: Config,
    model: Model,
    progress: Progress,
    data: Corpus,
    start: dict[str, Any],
    average: dict[str, Any] | None,
) -> dict[str, Any]:
    """The card of a run. `start`: the environment it started in, and its warm start if it had one.

    `average`: the validation of the average of checkpoints, if there was one.
    """
    return {
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "versions": start["versions"],
        "device": start["device"],
        "threads": start.get("threads"),  # a run of an earlier version has no such entry
        "jobs": start["jobs"],
        **({"processes": start["processes"]} if "processes" in start else {}),
        "data": data.checksums(),
        "messages": data.messages,
        "init": start.get("init"),
        "synthetic": start.get("synthetic", []),
        "figures": {
            "parameters": model.parameter_count,
            "trainable_parameters": model.trainable_count,
            "val_loss": progress.best_loss,
            "val_bleu_lower": None,
            **selected_bleu(config, progress),
            "best_step": progress.best_step,
            "steps": progress.step,
            "training_seconds": progress.seconds,
            "tokens_per_second": progress.tokens / progress.seconds,
        },
        "average": average,
    }


def selected_bleu(config: Config, progress: Progress) -> dict[str, float]:
    """The BLEU of the best weights, if it is what selected them."""
    name = f"val_{headline_bleu(config.data)}"
    return {name: progress.best_score} if config.training.checkpoint_metric == "bleu" else {}


def write_card(folder: Path, card: dict[str, Any]) -> None:
    files.write(folder / "card.json", documents.dumps(card, indent=1, ensure_ascii=False) + "\n")


def describe_environment(device: str, jobs: int, processes: int = 1) -> dict[str, Any]:
    """What the speed of a run, and its rounding, depend on. `jobs`: runs that share the device.

    `processes`: those that train it together, each on a device of that name; left out if it is one.
    """
    threads = torch.get_num_threads()
    facts = {
        "versions": versions(),
        "device": device_name(device),
        "threads": threads,
        "jobs": jobs,
    }
    return facts if processes == 1 else {**facts, "processes": processes}


def versions() -> dict[str, str]:
    return {
        "regard": regard.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    if device == "mps":
        return f"{platform.machine()}, MPS"
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
