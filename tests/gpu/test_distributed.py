"""Several processes on GPUs. With one GPU: a group of one process, which reduces as several would."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from regard.config import Config
from regard.models import build
from regard.models.weights import read
from regard.text.batch import BatchSampler, BatchSpec, DeviceDataset, EncodedPairs
from regard.training import sharding
from regard.training.device import use_cuda_stream
from regard.training.distributed import ALONE, World
from regard.training.step import TrainStep

VOCAB = 17
ROWS = [[4 + (7 * row + place) % 13 for place in range(1 + row % 11)] for row in range(97)]
DATA = EncodedPairs([[*ids, 2] for ids in ROWS], ROWS)
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


class Group(World):
    """One process that takes the way of several: sums over the processes, and shards."""

    @property
    def is_alone(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def _side_stream() -> Iterator[None]:
    with use_cuda_stream("cuda"):
        yield


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    store = distributed.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    torch.cuda.set_device(0)
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield Group(0, 1, store)
    distributed.destroy_process_group()


def choose_batches() -> list[BatchSpec]:
    sampler = BatchSampler(DATA, 10**6, 16, seed=1, bucket_shapes=2)
    return [batch for epoch in range(3) for batch in sampler.epoch(epoch)]


def train(
    config: Config, dtype: torch.dtype, graphs: bool, world: World
) -> tuple[TrainStep, list[torch.Tensor]]:
    """The training step after three epochs, and the whole weights."""
    torch.manual_seed(3)
    model = build(config.model, VOCAB, VOCAB, False).to("cuda")
    data = DeviceDataset(DATA, "cuda")
    train_step = TrainStep(model, config.training, data, dtype, graphs, lambda _: None, world)
    for number, batch in enumerate(choose_batches()):
        train_step([batch], 0.004, number)
    return train_step, [sharding.gather(p.detach()).clone() for p in model.parameters()]


def assert_close(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float) -> None:
    flat, its = (torch.cat([x.flatten().double() for x in each]) for each in (one, other))
    assert float((flat - its).norm() / flat.norm()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_graphs_stay_on(tiny: Callable[..., Config], group, family: str, dtype) -> None:
    """One graph before the sum over the processes, one after it."""
    config = tiny(family, ema_decay=0.9)
    _, alone = train(config, dtype, False, ALONE)
    train_step, weights = train(config, dtype, True, group)
    shapes = {(len(b.rows), b.source_length, b.target_length) for b in choose_batches()}
    assert train_step.cuda_graphs
    assert set(train_step.captured_steps) == shapes | {"update"}
    assert_close(alone, weights, 0.01 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sharded_steps(tiny: Callable[..., Config], group, family: str, dtype) -> None:
    config = tiny(family, ema_decay=0.9)
    _, alone = train(config, dtype, False, ALONE)
    sharded = config.training.model_copy(update={"sharding": "fsdp"})
    config = config.model_copy(update={"training": sharded})
    train_step, weights = train(config, dtype, False, group)
    assert all(sharding.is_sharded(parameter) for parameter in train_step.parameters)
    assert_close(alone, weights, 0.01 if dtype == torch.float32 else 0.05)
    with train_step.validated_model() as model:
        assert all(parameter.is_cuda for parameter in model.parameters())
        assert not any(map(sharding.is_sharded, model.parameters()))


@needs_two
@pytest.mark.parametrize("kind", ["none", "fsdp"])
def test_two_gpus_train_like_one(tiny: Callable[..., Config], tmp_path: Path, kind: str) -> None:
    config = tiny("transformer", precision="float32", sharding=kind)
    (tmp_path / "run.toml").write_text(config.to_toml())
    for name, options in (("one", ()), ("two", ("--devices", "2"))):
        command = [sys.executable, "-m", "regard", "train", "run.toml", "--run", name, *options]
        subprocess.run(command, cwd=tmp_path, check=True)
    one, two = (read(tmp_path / name / "model.safetensors")[0] for name in ("one", "two"))
    assert_close([one[name] for name in one], [two[name] for name in one], 0.01)
