"""safetensors files restore weights exactly, int8 ones to half a step; other files raise an error, and no
pickle is loaded.
"""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from regard import files
from regard.config import Config
from regard.errors import UserError
from regard.models import build
from regard.models.weights import (
    load_tensors,
    quantize_tensors,
    read,
    read_record,
    save,
    state_tensors,
)


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
    with pytest.raises(UserError, match="a is damaged: its int8 matrices have no scales"):
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


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
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


# --- damage ---------------------------------------------------------------------------------------


def split_file(content: bytes) -> tuple[dict, bytes]:
    """(header, tensors) of a safetensors file."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def join_file(header: dict, tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


def rename(header: dict) -> None:
    name = next(name for name in header if name != "__metadata__")
    header[name + "x"] = header.pop(name)


def edit_record(**changes: object) -> Callable[[dict], None]:
    def edit(header: dict) -> None:
        record = json.loads(header["__metadata__"]["regard"])
        header["__metadata__"]["regard"] = json.dumps(record | changes)

    return edit


CHANGED_HEADERS: dict[str, Callable[[dict], object]] = {
    "a name": rename,
    "a shape": lambda header: header["a"].update(shape=[3, 2]),
    "a type": lambda header: header["a"].update(dtype="I32"),
    "the record": edit_record(step=2),
    "a new key of the record": edit_record(files={"config.toml": "0" * 64}),
    "the checksum": edit_record(checksum="0" * 64),
    "other metadata": lambda header: header["__metadata__"].update(quantization="int8"),
}


@pytest.mark.parametrize("change", CHANGED_HEADERS)
def test_a_changed_header_does_not_match_the_checksum(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.safetensors"
    save(path, {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}, {"step": 1})
    header, tensors = split_file(path.read_bytes())
    path.write_bytes(join_file(header, tensors))
    assert read(path)[1] == {"step": 1}
    CHANGED_HEADERS[change](header)
    path.write_bytes(join_file(header, tensors))
    with pytest.raises(
        UserError, match=r"model\.safetensors is damaged: its content does not match"
    ):
        read(path)


@pytest.mark.parametrize("int8", [False, True])
def test_every_changed_byte_of_a_tensor_is_noticed(tmp_path: Path, int8: bool) -> None:
    path = tmp_path / "model.safetensors"
    save(path, {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}, {}, int8=int8)
    content = path.read_bytes()
    _, tensors = split_file(content)
    for position in range(len(content) - len(tensors), len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UserError, match="does not match its checksum"):
            read(path)


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name, state_tensors(model()), {"step": 1, "loss": float("nan")})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read(tmp_path / "a")[1] == {"step": 1, "loss": None}


def test_a_file_of_version_0_2_has_no_checksum(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(3)}, tmp_path / "a", {"regard": '{"step": 1}'})
    assert read(tmp_path / "a")[1] == {"step": 1}
    for record in ("not json", "[]", '{"step": -1}', '{"files": {"config.toml": "short"}}'):
        save_file({"x": torch.zeros(3)}, tmp_path / "a", {"regard": record})
        with pytest.raises(UserError, match=r"a is damaged: its record: .*Restore it from a copy"):
            read(tmp_path / "a")
        assert read_record(tmp_path / "a") == {}


HOSTILE = {
    "a product that overflows": ("F32", [2**62, 8]),
    "an empty tensor of a size that overflows": ("F32", [0, 2**63]),
    "a type that torch lacks": ("F6_E2M3", [32]),
    "a negative size": ("F32", [-6]),
    "a size that is a text": ("F32", ["6"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_one_error(tmp_path: Path, name: str) -> None:
    dtype, shape = HOSTILE[name]
    size = 0 if 0 in shape else 24
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(join_file({"__metadata__": {"regard": "{}"}, "a": entry}, bytes(size)))
    with pytest.raises(
        UserError, match=r"damaged or not a safetensors file: .*from a copy"
    ) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(value: float) -> None:
    ours = model()
    tensors = {name: tensor.clone() for name, tensor in state_tensors(ours).items()}
    name = list(tensors)[-1]
    tensors[name].view(-1)[-1] = value
    with pytest.raises(
        UserError, match=rf'm has NaN or infinity in "{re.escape(name)}": it is dam'
    ):
        load_tensors(ours, tensors, Path("m"))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_weights_that_are_not_floats(dtype: torch.dtype) -> None:
    ours = model()
    tensors = {name: tensor.clone() for name, tensor in state_tensors(ours).items()}
    name = next(iter(tensors))
    with pytest.raises(
        UserError, match=rf'm is damaged: "{re.escape(name)}" is of type .*, not float'
    ):
        load_tensors(ours, tensors | {name: tensors[name].to(dtype)}, Path("m"))


def test_an_interrupt_is_not_reported_as_damage(tmp_path: Path, monkeypatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.models.weights.safe_open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        read(tmp_path / "model.safetensors")
