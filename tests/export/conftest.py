"""Small runs, written without training: random weights, a tokenizer of the data, a result card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import files, presets
from regard.models import build, weights
from regard.text import corpus
from regard.text.tokenizer import TokenizerPair

SIZES = {"train": 60, "val": 5, "test": 17, "min_length": 4, "max_length": 12}
LLAMA = {
    "kind": "decoder-only",
    "d_model": 24,
    "d_ff": 31,
    "norm": "rms",
    "activation": "swiglu",
    "position": {"kind": "rotary", "base": 5000.0},
    "attention": {"heads": 3, "kv_heads": 1, "head_dim": 10},
}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """make_run(model=..., data=...): the folder of a run of the case task, or of other data."""

    def make(name: str = "run", **tables: Any) -> Path:
        table = {"description": "a test", "data": SIZES} | tables
        config = presets.validate(table, name)
        data = corpus.load(config.data)
        folder = tmp_path / name
        folder.mkdir()
        files.write(folder / "config.toml", config.to_toml())
        tokenizers = TokenizerPair.train(config.tokenizer, data["train"], data.symbols)
        tokenizers.save(folder / "tokenizer.json")
        torch.manual_seed(3)
        sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
        model = build(config.model, *sizes, tokenizers.joint)
        with torch.no_grad():
            for parameter in model.parameters():  # so that norms are not the identity
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        weights.save(folder / "model.safetensors", weights.state_tensors(model), {"step": 1})
        figures = {"training_seconds": 2.0, "val_loss": 1.25, "steps": 1, "best_step": 1}
        card = {"versions": {"regard": "0"}, "device": "x86_64", "figures": figures}
        files.write(folder / "card.json", json.dumps(card))
        (folder / "last").mkdir()
        files.write(folder / "last" / "state.safetensors", b"only a resumed training needs it")
        return folder

    return make
