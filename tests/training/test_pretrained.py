"""Fine-tuning: what should learn does, what should not stays bit for bit, and a resumed run is the same."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

import regard
from regard.config import Config
from regard.errors import UserError
from regard.models import hub, load_pretrained
from regard.models.weights import read, state_tensors
from regard.training import checkpoint as checkpoints
from regard.training import loop
from regard.training.run import adoption

TRAINING = {
    "epochs": 1.0,
    "batch_sentences": 8,
    "validate_every": 2,
    "learning_rate": 0.02,
    "warmup_steps": 1,
}
DATA = {"name": "copy", "train": 43, "val": 5, "test": 5, "max_length": 9}
LORA = {"kind": "lora", "rank": 3, "dropout": 0.3}
RUNS = {
    "gpt2": {"kind": "full"},
    "llama": LORA,
    "t5": {"kind": "frozen", "layers": 1},
    "marian": LORA,
}


class Killed(BaseException):
    """Not an Exception: nothing may catch it and tidy up."""


@pytest.fixture(scope="module")
def tiny(checkpoint):
    def make(shape: str, tune: dict, **training) -> Config:
        model = {"kind": "pretrained", "name": str(checkpoint(shape)), "tune": tune}
        return Config.model_validate(
            {"data": DATA, "model": model, "training": TRAINING | training, "tokenizer": "words"}
        )

    return make


@pytest.fixture(scope="module", params=RUNS)
def whole(request, tiny, fit, tmp_path_factory) -> tuple[Config, Path, str]:
    """A finished run, and what was said meanwhile."""
    config = tiny(request.param, RUNS[request.param])
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return config, folder, fit(config, folder)


def test_it_learns_and_what_is_frozen_stays(whole, tmp_path):
    config, folder, said = whole
    torch.manual_seed(config.seed)
    model = load_pretrained(config.model, config.tokenizer).model
    before, after = state_tensors(model), read(folder / "model.safetensors")[0]
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    # A fresh B is 0, so A moves from the second step on; a last layer's bias of keys never does.
    assert moved <= learned
    assert len(moved) > 0.9 * len(learned)
    losses = [
        float(line.split("val ")[1].split()[0]) for line in said.splitlines() if "val " in line
    ]
    assert losses[-1] < losses[0] - 0.1
    assert "the tokenizer is the model's own" in said
    assert (f"({model.trainable_count:,} of them learn)" in said) == (
        config.model.tune.kind != "full"
    )


@pytest.mark.parametrize("after", [0, 3])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    whole, after, fit, same_run, tmp_path, monkeypatch
):
    config, folder, _ = whole
    steps = iter(range(99))

    def step(self):
        if next(steps) == after:
            raise Killed
        return original(self)

    original = loop.Loop.step
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "step", step)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    assert (tmp_path / "run" / checkpoints.FILE).is_file() == (after > 2)
    torch.manual_seed(99)
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", folder)


def test_a_run_forgets_where_its_model_came_from(whole, checkpoint, tmp_path, monkeypatch):
    _, folder, _ = whole
    wanted = regard.load(folder).translate(["abc d", "b"], beam=2)
    monkeypatch.setattr(hub, "locate", lambda name: pytest.fail(f"{name} was looked for"))
    moved = folder.rename(tmp_path / "moved")
    try:
        found = regard.load(moved).translate(["abc d", "b"], beam=2)
    finally:
        moved.rename(folder)
    assert [output.text for output in found] == [output.text for output in wanted]
    assert set(found[0].attention) == {"cross", "encoder", "decoder"}


def test_a_running_mean_of_what_learns(tiny, fit, tmp_path):
    config = tiny("gpt2", {"kind": "frozen", "layers": 1}, ema_decay=0.5)
    fit(config, tmp_path / "run")
    state = read(tmp_path / "run" / checkpoints.FILE)[0]
    frozen = "hf_model.transformer.wte.weight"
    learns = "hf_model.transformer.h.1.attn.c_attn.weight"
    assert torch.equal(state[f"model.{frozen}"], state[f"average.{frozen}"])
    assert not torch.equal(state[f"model.{learns}"], state[f"average.{learns}"])
    assert not any(frozen in name for name in state if name.startswith("optimizer."))


def test_a_rate_for_weights_that_know_nothing_is_told(tiny):
    """All of a TOML but [model] may stay, and the rate in it is one for a model made from scratch."""
    for tune, rate, much in (
        ("full", 2.5e-3, True),
        ("full", 1e-4, False),
        ("lora", 2.5e-3, False),
        ("lora", 1e-2, True),
    ):
        said = io.StringIO()
        adoption(tiny("gpt2", {"kind": tune}, learning_rate=rate), Console(file=said, width=200))
        assert (f"training.learning_rate is {rate:g}, and " in said.getvalue()) == much
        assert (f'is usual with tune = "{tune}": more may undo' in said.getvalue()) == much


def test_a_wrong_name_leaves_no_folder_behind(tiny, fit, tmp_path):
    config = tiny("gpt2", {"kind": "full"})
    wrong = config.model.model_copy(update={"name": str(tmp_path / "nothing")})
    with pytest.raises(UserError, match="there is no folder"):
        fit(config.model_copy(update={"model": wrong}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
