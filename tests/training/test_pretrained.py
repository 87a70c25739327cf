"""Fine-tuning: trainable weights change, frozen ones stay bit for bit, and a resume is exact."""

import io
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.config import Config
from regard.display import Display
from regard.errors import UserError
from regard.models import hub, load_pretrained
from regard.models.weights import read, state_tensors
from regard.terminal import Console
from regard.training import checkpoint as checkpoints
from regard.training import loop
from regard.training.run import load_pretrained_model

TRAINING = {
    "epochs": 1.0,
    "batch_sentences": 8,
    "validate_every": 2,
    "learning_rate": 0.02,
    "warmup_steps": 1,
    "keep_last": True,  # for comparisons of everything that training changes
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
    """Not an Exception, so that no handler catches it and cleans up."""


@pytest.fixture(scope="module")
def tiny(checkpoint):
    def make_config(shape: str, tune: dict, **training) -> Config:
        model = {"kind": "pretrained", "name": str(checkpoint(shape)), "tune": tune}
        return Config.model_validate(
            {"data": DATA, "model": model, "training": TRAINING | training, "tokenizer": "words"}
        )

    return make_config


@pytest.fixture(scope="module", params=RUNS)
def finished(request, tiny, fit, tmp_path_factory) -> tuple[Config, Path, str]:
    """(config, run folder, console output) of a finished run."""
    config = tiny(request.param, RUNS[request.param])
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return config, folder, fit(config, folder)


def test_trainable_weights_change_and_frozen_ones_do_not(finished, tmp_path):
    config, folder, output = finished
    torch.manual_seed(config.seed)
    model = load_pretrained(config.model, config.tokenizer).model
    before, after = state_tensors(model), read(folder / "model.safetensors")[0]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    # LoRA's B starts at 0, so A changes from the second step on; the key bias of the last layer never.
    assert changed <= trainable
    assert len(changed) > 0.9 * len(trainable)
    losses = [
        float(line.split("val ")[1].split()[0]) for line in output.splitlines() if "val " in line
    ]
    assert losses[-1] < losses[0] - 0.1
    assert "using the tokenizer of the pretrained model" in output
    is_partial = config.model.tune.kind != "full"
    assert (f"({model.trainable_count:,} trainable)" in output) == is_partial


@pytest.mark.parametrize("after", [0, 3])
def test_resume_is_exact(finished, after, fit, same_run, tmp_path, monkeypatch):
    config, folder, _ = finished
    steps = iter(range(99))

    def step(self):
        if next(steps) == after:
            raise Killed
        return original(self)

    original = loop.TrainingLoop.step
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "step", step)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    assert (tmp_path / "run" / checkpoints.FILE).is_file() == (after > 2)
    torch.manual_seed(99)
    fit(config, tmp_path / "run", resume=True)
    same_run(tmp_path / "run", folder)


def test_run_does_not_need_the_pretrained_checkpoint(finished, checkpoint, tmp_path, monkeypatch):
    _, folder, _ = finished
    expected = regard.load(folder).translate(["abc d", "b"], beam=2)
    monkeypatch.setattr(hub, "locate", lambda name: pytest.fail(f"{name} was fetched"))
    moved = folder.rename(tmp_path / "moved")
    try:
        outputs = regard.load(moved).translate(["abc d", "b"], beam=2)
    finally:
        moved.rename(folder)
    assert [output.text for output in outputs] == [output.text for output in expected]
    assert set(outputs[0].attention) == {"cross", "encoder", "decoder"}


def test_ema_of_trainable_weights(tiny, fit, tmp_path):
    config = tiny("gpt2", {"kind": "frozen", "layers": 1}, ema_decay=0.5)
    fit(config, tmp_path / "run")
    state = read(tmp_path / "run" / checkpoints.FILE)[0]
    frozen = "hf_model.transformer.wte.weight"
    trainable = "hf_model.transformer.h.1.attn.c_attn.weight"
    assert torch.equal(state[f"model.{frozen}"], state[f"ema.{frozen}"])
    assert not torch.equal(state[f"model.{trainable}"], state[f"ema.{trainable}"])
    assert not any(frozen in name for name in state if name.startswith("optimizer."))


def test_high_learning_rate_warning(tiny):
    """A TOML written for training from scratch has a learning rate too high for fine-tuning."""
    for tune, rate, is_high in (
        ("full", 2.5e-3, True),
        ("full", 1e-4, False),
        ("lora", 2.5e-3, False),
        ("lora", 1e-2, True),
    ):
        output = io.StringIO()
        config = tiny("gpt2", {"kind": tune}, learning_rate=rate)
        load_pretrained_model(config, Display(Console(file=output, width=200)))
        warning = f'learning_rate is {rate:g}; usual with tune = "{tune}" is '
        assert (warning in output.getvalue()) == is_high
        assert ("may destroy the pretrained weights" in output.getvalue()) == is_high


def test_wrong_name_leaves_no_folder(tiny, fit, tmp_path):
    config = tiny("gpt2", {"kind": "full"})
    wrong = config.model.model_copy(update={"name": str(tmp_path / "nothing")})
    with pytest.raises(UserError, match="there is no folder"):
        fit(config.model_copy(update={"model": wrong}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- adapters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [None, 0.5])
@pytest.mark.parametrize("shape", ["llama", "marian"])
def test_an_adapter_only_run_is_small_and_translates_the_same(
    shape, decay, tiny, fit, checkpoint, tmp_path
):
    """The same training, but the frozen weights come from the checkpoint."""
    for name, adapter_only in {"whole": False, "adapter": True}.items():
        config = tiny(shape, LORA | {"adapter_only": adapter_only}, ema_decay=decay)
        fit(config, tmp_path / name)
    whole, adapter = (read(tmp_path / n / "model.safetensors")[0] for n in ("whole", "adapter"))
    assert set(adapter) == {name for name in whole if "lora_" in name}
    assert all(torch.equal(adapter[name], whole[name]) for name in adapter)
    one, two = (
        regard.load(tmp_path / name).translate(["abc d", "b"], beam=2)
        for name in ("whole", "adapter")
    )
    assert [o.text for o in one] == [o.text for o in two]
    assert [o.score for o in one] == pytest.approx([o.score for o in two], rel=1e-5)


def test_an_adapter_needs_its_checkpoint(tiny, fit, checkpoint, tmp_path):
    copied = shutil.copytree(checkpoint("llama"), tmp_path / "base")
    config = tiny("llama", LORA | {"adapter_only": True})
    table = config.model_dump()
    table["model"]["name"] = str(copied)
    fit(Config.model_validate(table), tmp_path / "run")
    tensors = load_file(copied / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name] + 1
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"only an adapter of .*base, whose weights have changed"):
        regard.load(tmp_path / "run")
    shutil.rmtree(copied)
    with pytest.raises(
        UserError, match=r"only an adapter of .*base, which cannot be loaded: there is"
    ):
        regard.load(tmp_path / "run")
