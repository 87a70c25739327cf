"""Sharded parameters in one process: what can go wrong without another."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from regard.config import Config
from regard.models import build
from regard.text.batch import BatchSampler, DeviceDataset, EncodedPairs
from regard.training import sharding
from regard.training.distributed import ALONE, World
from regard.training.step import TrainStep
from tests.training.conftest import MODELS

VOCAB = 17
ROWS = [[4 + (7 * row + place) % 13 for place in range(1 + row % 11)] for row in range(41)]
DATA = EncodedPairs([[*ids, 2] for ids in ROWS], ROWS)


class Group(World):
    """One process that shards as several do."""

    @property
    def is_alone(self) -> bool:
        return False


@pytest.fixture
def group(tmp_path: Path) -> Iterator[World]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Group(0, 1, store)
    distributed.destroy_process_group()


def train(config: Config, world: World) -> list[torch.Tensor]:
    """The whole weights after an epoch."""
    torch.manual_seed(3)
    model = build(config.model, VOCAB, VOCAB, False)
    data = DeviceDataset(DATA, "cpu")
    arguments = (model, config.training, data, torch.float32, False, lambda _: None, world)
    train_step = TrainStep(*arguments)
    for number, batch in enumerate(BatchSampler(DATA, 10**6, 8, seed=1).epoch(0)):
        train_step([batch], 0.004, number)
    return [sharding.gather(p.detach()).clone() for p in model.parameters()]


def move_weights(cell: nn.RNNBase) -> None:
    """Move the weights into one array, as PyTorch does for cuDNN before a cell's first step."""
    with torch.no_grad():
        parts = [weight.flatten() for weight in cell._flat_weights]
        array, offset = torch.cat(parts), 0
        for weight in cell._flat_weights:
            place = (array.untyped_storage(), offset, weight.shape, weight.stride())
            weight.set_(*place)
            offset += weight.numel()


def test_recurrent_cells_compute_with_what_is_gathered(tiny, group, monkeypatch) -> None:
    calls = []

    def flatten(cell: nn.RNNBase) -> None:
        if not any(map(sharding.is_sharded, cell._flat_weights)):
            calls.append(cell)
            move_weights(cell)

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    config = tiny("recurrent")
    model = MODELS["recurrent"] | {"dropout": 0.0}
    config = Config.model_validate(config.model_dump() | {"model": model})
    sharded = config.training.model_copy(update={"sharding": "fsdp"})
    alone = train(config, ALONE)
    assert calls
    together = train(config.model_copy(update={"training": sharded}), group)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
