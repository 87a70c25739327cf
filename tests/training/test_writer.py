"""Files of tensors, written at once (CPU) or by a thread (GPU): complete, in order, errors raised."""

from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.models import weights
from regard.training.writer import Writer

DEVICES = [torch.device("cpu"), torch.device("cuda")]  # a thread needs no GPU


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_files_are_complete_when_the_writer_is_closed(tmp_path: Path, device) -> None:
    writer = Writer(device)
    for step in range(5):
        for name in ("one", "two"):
            writer.save(tmp_path / name, {"x": torch.full((100,), step)}, {"step": step})
    writer.close()
    for name in ("one", "two"):
        tensors, record = weights.read(tmp_path / name)
        assert record == {"step": 4}
        assert (tensors["x"] == 4).all()


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_an_error_is_raised_by_the_next_call_at_the_latest(tmp_path: Path, device) -> None:
    writer, tensors = Writer(device), {"x": torch.zeros(1)}
    (tmp_path / "file").touch()

    def save_twice() -> None:
        writer.save(tmp_path / "file" / "inside", tensors, {})
        writer.save(tmp_path / "other", tensors, {})

    with pytest.raises(UserError):
        save_twice()
    writer.close()


def test_on_a_cpu_the_file_has_the_values_of_the_call(tmp_path: Path) -> None:
    writer, x = Writer(torch.device("cpu")), torch.zeros(1)
    writer.save(tmp_path / "file", {"x": x}, {})
    x += 1
    writer.close()
    assert weights.read(tmp_path / "file")[0]["x"] == 0
