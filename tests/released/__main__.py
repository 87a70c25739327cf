"""Write the run folders of a version, with the code that is installed: once, when it is released.

    python -m tests.released 0.3.0

Only the command line is used, so that this also runs with the code of an earlier version (PYTHONPATH).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEXTS = ["<U> Hello, Anna!", "<L> He was HAPPY.", "<U> We did it"]
SMALL = {
    "data": {"train": 120, "val": 12, "test": 12, "max_length": 20},
    "training": {"epochs": 60, "batch_sentences": 16, "warmup_steps": 2, "learning_rate": 0.02},
}
RECURRENT = {"kind": "recurrent", "embedding_dim": 5, "hidden_dim": 7}
TRANSFORMER = {"kind": "transformer", "d_model": 6, "d_ff": 10, "tie_embeddings": True}
DECODER_ONLY = {"kind": "decoder-only", "d_model": 6, "d_ff": 10}
HEADS = {"attention": {"heads": 2}}
RUNS: dict[str, dict[str, Any]] = {
    "recurrent-words": {"model": RECURRENT, "tokenizer": {"kind": "words"}},
    "transformer-bpe": {
        "model": TRANSFORMER | HEADS,
        "tokenizer": {"kind": "bpe", "vocab_size": 300, "joint": True},
    },
    "decoder-only-characters": {
        "model": DECODER_ONLY | HEADS,
        "tokenizer": {"kind": "characters", "joint": True},
    },
}
# Stopped after its first checkpoint, to be resumed by later versions.
UNFINISHED = "unfinished"
EXPECTED = "expected.json"


def write_version(version: str) -> None:
    folder = HERE / version
    printed = regard("--version")
    if printed.strip() != f"regard {version}":
        sys.exit(f"the installed code is {printed.strip()}, not {version}")
    if folder.exists():
        sys.exit(f"{folder} already exists: what a released version wrote is never written again")
    expected: dict[str, Any] = {"texts": TEXTS, "runs": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name, tables in RUNS.items():
            run = Path(temporary) / name
            regard("train", "case", "--run", str(run), "--device", "cpu", *settings(tables))
            evaluation = json.loads(regard("evaluate", str(run), "--device", "cpu", "--json"))
            (run / "evaluation-test.json").write_text(json.dumps(keep(evaluation)), "utf-8")
            expected["runs"][name] = translate(run)
            drop_large(run)
        run = Path(temporary) / UNFINISHED
        stop_after_checkpoint(run, settings(RUNS["recurrent-words"]))
        expected["runs"][UNFINISHED] = translate(run)
        copy = Path(temporary) / "resumed"
        shutil.copytree(run, copy)
        regard(
            "train", str(copy / "config.toml"), "--run", str(copy), "--resume", "--device", "cpu"
        )
        figures = json.loads((copy / "card.json").read_text("utf-8"))["figures"]
        expected["resumed"] = {name: figures[name] for name in ("steps", "val_loss")}
        shutil.rmtree(copy)
        (Path(temporary) / EXPECTED).write_text(
            json.dumps(expected, indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
        shutil.copytree(temporary, folder)


def regard(*arguments: str) -> str:
    command = [sys.executable, "-m", "regard", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout


def settings(tables: dict[str, Any]) -> list[str]:
    """--set of every table: {"model": {"layers": 1}} -> --set model.layers=1"""
    options = []
    for name, table in {**SMALL, **tables}.items():
        for key, value in flatten(table, name):
            options += ["--set", f"{key}={json.dumps(value)}"]
    return options


def flatten(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Dotted keys and values, the kind first: setting it resets its table."""
    pairs = []
    for key, value in sorted(table.items(), key=lambda item: item[0] != "kind"):
        name = f"{prefix}.{key}"
        pairs += flatten(value, name) if isinstance(value, dict) else [(name, value)]
    return pairs


def translate(run: Path) -> list[dict[str, Any]]:
    """Text and score of the greedy translation of each of TEXTS."""
    command = ("translate", str(run), *TEXTS, "--device", "cpu", "--json")
    document = json.loads(regard(*command))
    outputs = document if isinstance(document, list) else document["translations"]
    return [{"text": output["text"], "score": output["score"]} for output in outputs]


def keep(evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation as `regard compare` stores it, without the path of the run."""
    return {name: value for name, value in evaluation.items() if name != "run"}


def stop_after_checkpoint(run: Path, options: list[str]) -> None:
    """Interrupt training, like Ctrl-C, when its second validation is logged."""
    long = ["--set", "training.epochs=20", "--set", "training.validate_every=10"]
    command = ["train", "case", "--run", str(run), "--device", "cpu", *options, *long]
    process = subprocess.Popen([sys.executable, "-m", "regard", *command])
    log, deadline = run / "metrics.jsonl", time.monotonic() + 120
    while not log.is_file() or log.read_text("utf-8").count("\n") < 3:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit("training ended, or took too long, before it could be interrupted")
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    drop_large(run, and_last=False)
    if not (run / "last").is_dir() or (run / "card.json").exists():
        sys.exit("training was finished before it was interrupted")


def drop_large(run: Path, and_last: bool = True) -> None:
    """Without pictures, and without the checkpoint of a finished run."""
    shutil.rmtree(run / "examples", ignore_errors=True)
    (run / ".lock").unlink(missing_ok=True)
    if and_last:
        shutil.rmtree(run / "last", ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="as `regard --version` prints it")
    os.environ["OMP_NUM_THREADS"] = "1"
    write_version(parser.parse_args().version)
