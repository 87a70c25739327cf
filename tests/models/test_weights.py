"""safetensors files restore weights exactly, int8 ones to half a step; other files raise an error, and no
pickle is loaded.
"""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from regard import files
from regard.config import Config
from regard.errors import UserError
from regard.models import build
from regard.models.weights import load_tensors, quantize_tensors, read, save, state_tensors


def model(kind: str = "recurrent", seed: int = 0):
    torch.manual_seed(seed)
    sizes = (
        {"d_model": 6, "attention": {"heads": 2}} if kind == "transformer" else {"hidden_dim": 5}
    )
    return build(Config.model_validate({"model": {"kind": kind, **sizes}}).model, 11, 11, True)


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_save_and_load(tmp_path: Path, kind: str) -> None:
    one, two = model(kind, 0), model(kind, 1)
    save(tmp_path / "a.safetensors", state_tensors(one), {"step": 7, "loss": 0.1})
    tensors, record = read(tmp_path / "a.safetensors")
    assert record == {"step": 7, "loss": 0.1}
    assert any(
        not torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )
    load_tensors(two, tensors, tmp_path)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.requires_grad


def test_int8_rounds_each_weight_by_at_most_half_a_step(named_model, tmp_path: Path) -> None:
    """For each model: the step of a matrix row is max |row| / 127; other tensors are exact."""
    one, path = named_model[1], tmp_path / "a.safetensors"
    save(path, state_tensors(one), {"step": 7}, int8=True)
    tensors, record = read(path)
    assert record == {"step": 7}
    two = copy.deepcopy(one)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.fill_(torch.nan)
    load_tensors(two, tensors, path)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        if a.ndim == 2:
            step = a.abs().amax(1, keepdim=True) / 127
            assert ((a - b).abs() <= 0.501 * step).all()
        else:
            assert torch.equal(a, b)


def test_int8_file_is_a_quarter_as_large_and_says_what_it_is(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(97, 1009), "vector": torch.randn(89)}
    paths = {int8: tmp_path / f"{int8}.safetensors" for int8 in (False, True)}
    for int8, path in paths.items():
        save(path, tensors, {}, int8=int8)
    sizes = {int8: path.stat().st_size for int8, path in paths.items()}
    assert 0.25 < sizes[True] / sizes[False] < 0.26
    with safe_open(paths[True], framework="pt") as file:
        assert file.metadata()["quantization"] == "int8"
        assert file.get_tensor("matrix").dtype == torch.int8


def test_int8_rounds_once_only(tmp_path: Path) -> None:
    """Quantizing what was dequantized, for another file or for int8 products, changes no value."""
    tensors = {"matrix": torch.randn(13, 101) * torch.logspace(-6, 3, 13)[:, None]}
    save(tmp_path / "a", tensors, {}, int8=True)
    again = quantize_tensors(read(tmp_path / "a")[0])
    assert torch.equal(again["matrix"], quantize_tensors(tensors)["matrix"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_int8_does_not_hide_that_a_weight_is_not_finite(tmp_path: Path, value: float) -> None:
    matrix = torch.ones(3, 5)
    matrix[1, 2] = value
    save(tmp_path / "a", {"matrix": matrix, "zeros": torch.zeros(2, 3)}, {}, int8=True)
    tensors, _ = read(tmp_path / "a")
    assert tensors["matrix"].isfinite().all(1).tolist() == [True, False, True]
    assert torch.equal(tensors["zeros"], torch.zeros(2, 3))


def test_an_unknown_quantization(tmp_path: Path) -> None:
    metadata = {"regard": "{}", "quantization": "int4"}
    save_file({"x": torch.zeros(3)}, tmp_path / "a", metadata)
    with pytest.raises(UserError, match='quantized to "int4", not int8: a newer regard wrote it'):
        read(tmp_path / "a")


def test_int8_values_without_scales(tmp_path: Path) -> None:
    metadata = {"regard": "{}", "quantization": "int8"}
    save_file({"x": torch.zeros(3, 5, dtype=torch.int8)}, tmp_path / "a", metadata)
    with pytest.raises(UserError, match="was not written by regard"):
        read(tmp_path / "a")


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    for _ in range(2):
        with pytest.raises(UserError, match="damaged or not a safetensors file"):
            read(path)
        torch.save({"x": Trap()}, path)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap()))  # loading it does run code
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 50, -1])
def test_a_truncated_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    save(path, state_tensors(model()), {})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="damaged or not a safetensors file"):
        read(path)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"regard": "not json"}])
def test_a_file_of_another_program(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"x": torch.zeros(3)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(UserError, match="was not written by regard"):
        read(tmp_path / "a.safetensors")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        read(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("output.bias"), r'1 tensors missing, 0 unexpected, 0 .* "output.bias"'),
        (lambda t: t.update(x=torch.zeros(2)), r'0 tensors missing, 1 unexpected, 0 .* "x"'),
        (
            lambda t: t.update({"output.bias": torch.zeros(12)}),
            r'0 tensors missing, 0 unexpected, 1 of another shape .* "output.bias"',
        ),
    ],
)
def test_tensors_that_do_not_match(tmp_path: Path, change, message: str) -> None:
    target = model()
    tensors = {name: tensor + 1 for name, tensor in state_tensors(target).items()}
    before = {name: tensor.clone() for name, tensor in state_tensors(target).items()}
    change(tensors)
    with pytest.raises(UserError, match=message):
        load_tensors(target, tensors, tmp_path / "a")
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_tensors(target).items())


FULL = """
import resource, sys, torch
from pathlib import Path
from regard.errors import UserError
from regard.models.weights import save
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # Python ignores SIGXFSZ: writes fail
try:
    save(Path(sys.argv[1]), {"x": torch.zeros(100_000)}, {})
except UserError as error:
    print(error)
"""


def test_a_full_disk_raises_an_error_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(path, {"x": torch.ones(3)}, {})
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "a.safetensors cannot be written: " in done.stdout, done.stderr
    assert torch.equal(read(path)[0]["x"], torch.ones(3))
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_the_file_that_is_synced_is_the_one_that_stays(tmp_path: Path, monkeypatch) -> None:
    """A writer that replaces the temporary file would leave nothing to sync, with its own mode."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    save(tmp_path / "a.safetensors", {"x": torch.ones(3)}, {})
    files.write(tmp_path / "a.txt", "text")
    weights, text = (tmp_path / "a.safetensors").stat(), (tmp_path / "a.txt").stat()
    assert synced == [weights.st_ino, text.st_ino]
    assert weights.st_mode == text.st_mode
