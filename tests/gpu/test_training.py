"""Training on a GPU: CUDA graphs, half precision, loss scaling, accumulation, resume, memory errors."""

import io
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.config import Bpe, Characters, Config, FileData, Training
from regard.errors import UserError
from regard.models import build
from regard.models.weights import read, state_tensors
from regard.terminal import Console
from regard.text import shard_writer, shards
from regard.text.batch import BatchSampler, BatchSpec, Buckets, DeviceDataset, EncodedPairs
from regard.text.bpe_dropout import BpeDropout
from regard.text.stream import open_stream
from regard.text.tokenizer import TokenizerPair
from regard.text.windows import ShardedPairs, WindowDataset, WindowSampler
from regard.training import checkpoint, run, step, train
from regard.training.device import report_out_of_memory, select_dtype, use_cuda_stream
from regard.training.step import TrainStep
from regard.training.writer import Writer

VOCAB = 17
PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _side_stream() -> Iterator[None]:
    with use_cuda_stream("cuda"):
        yield


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "draw_examples", lambda *_: None)


@pytest.fixture(scope="module")
def data() -> EncodedPairs:
    """Targets that repeat the source, so that there is something to learn."""
    random = torch.Generator().manual_seed(7)

    def row() -> list[int]:
        length = int(torch.randint(1, 13, (), generator=random))
        return torch.randint(4, VOCAB, (length,), generator=random).tolist()

    rows = [row() for _ in range(97)]
    return EncodedPairs([[*ids, 2] for ids in rows], rows)


@pytest.fixture
def make(tiny: Callable[..., Config], data: EncodedPairs) -> Callable[..., TrainStep]:
    """make(family, dtype, graphs, **training): a TrainStep on the GPU, always with the same weights."""

    def make_step(
        family: str,
        dtype: torch.dtype = torch.float32,
        graphs: bool = True,
        log: Callable[[str], None] = lambda _: None,
        **training: Any,
    ) -> TrainStep:
        config = tiny(family, **training)
        torch.manual_seed(3)
        model = build(config.model, VOCAB, VOCAB, False).to("cuda")
        dataset = DeviceDataset(data, "cuda")
        return TrainStep(model, config.training, dataset, dtype, graphs, log)

    return make_step


@pytest.fixture(scope="module")
def batches(data: EncodedPairs) -> list[BatchSpec]:
    """Three epochs in two shapes, so that most steps are replayed."""
    sampler = BatchSampler(data, 10**6, 16, seed=1, bucket_shapes=2)
    return [batch for epoch in range(3) for batch in sampler.epoch(epoch)]


def copy_weights(train_step: TrainStep) -> Weights:
    return {name: tensor.clone() for name, tensor in state_tensors(train_step.model).items()}


def run_steps(train_step: TrainStep, batches: list[BatchSpec]) -> Weights:
    """Train with a different learning rate in each step; return the weights."""
    count = train_step.settings.accumulation_steps
    for number, start in enumerate(range(0, len(batches), count)):
        rate = 0.002 * (1 + number % 3)
        train_step(batches[start : start + count], rate, number)
    torch.cuda.synchronize()
    return copy_weights(train_step)


def distance(one: Weights, two: Weights) -> float:
    return sum(float((one[name] - two[name]).double().square().sum()) for name in one) ** 0.5


def assert_same_training(start: Weights, one: Weights, two: Weights, tolerance: float) -> None:
    """The results differ by little, compared with how far training moved them.

    Not bit for bit: the GPU adds up the gradients of embeddings in no fixed order.
    """
    moved = distance(start, one)
    assert moved > 0.1
    assert distance(one, two) < tolerance * moved


# --- CUDA graphs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_replayed_steps_equal_eager_steps(
    make, batches: list[BatchSpec], family: str, precision: str
) -> None:
    dtype = PRECISIONS[precision]
    start = copy_weights(make(family))
    eager, replayed = (make(family, dtype, graphs, ema_decay=0.9) for graphs in (False, True))
    one, two = run_steps(eager, batches), run_steps(replayed, batches)
    shapes = {(len(b.rows), b.source_length, b.target_length) for b in batches}
    assert replayed.cuda_graphs
    assert set(replayed.captured_steps) == shapes
    assert not eager.captured_steps
    tolerance = 0.01 if precision == "float32" else 0.1
    assert_same_training(start, one, two, tolerance)
    averages = [state_tensors(train_step.ema_model) for train_step in (eager, replayed)]
    assert_same_training(start, averages[0], averages[1], tolerance)
    assert replayed.mean_loss() == pytest.approx(eager.mean_loss(), rel=tolerance)


def test_dropout_of_replayed_steps_equals_eager_steps(make, batches: list[BatchSpec]) -> None:
    """A replay draws new random numbers, the same as an eager step would."""
    results = []
    for graphs in (False, True):
        train_step = make("transformer", graphs=graphs, dropout=0.3)
        torch.cuda.manual_seed(5)
        results.append(run_steps(train_step, batches))
    other = make("transformer", dropout=0.3)
    torch.cuda.manual_seed(6)
    start = copy_weights(other)
    assert_same_training(start, results[0], results[1], tolerance=0.02)
    assert distance(results[0], run_steps(other, batches)) > 0.1 * distance(start, results[0])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_r_drop_of_replayed_steps_equals_eager_steps(
    make, batches: list[BatchSpec], precision: str, count: int
) -> None:
    """Two passes with different dropout in one graph; nothing waits for the host."""
    results, losses = [], []
    options = {"dropout": 0.3, "label_smoothing": 0.1, "accumulation_steps": count}
    batches = batches[: len(batches) // count * count]
    for graphs, r_drop in ((False, 2.5), (True, 2.5), (True, 0.0)):
        train_step = make("transformer", PRECISIONS[precision], graphs, r_drop=r_drop, **options)
        torch.cuda.manual_seed(5)
        results.append(run_steps(train_step, batches))
        losses.append(train_step.mean_loss())
        assert train_step.cuda_graphs == graphs
        assert bool(train_step.captured_steps) == graphs
    start = copy_weights(make("transformer"))
    tolerance = 0.02 if precision == "float32" else 0.2
    assert_same_training(start, results[0], results[1], tolerance)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[2] < losses[1]  # without the divergence


def test_r_drop_on_a_gpu_equals_that_on_the_cpu(tiny, data: EncodedPairs) -> None:
    """The GPU keeps the rows of padding that the CPU drops. Without dropout, where the passes are equal."""
    torch.manual_seed(3)
    model = build(tiny("transformer").model, VOCAB, VOCAB, False)
    batch = data.batch(range(16))
    results = []
    for device in ("cpu", "cuda"):
        moved = model.to(device)
        loss = step.objective(moved, batch.to(device), 0.1, 1.0, 2.5)
        gradients = torch.autograd.grad(loss, list(moved.parameters()))
        results.append([x.cpu() for x in (loss.detach(), *gradients)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


TEXT = ["the lowest tower", "a wider river and the newest tower", "lower the widest river"]


def test_bpe_dropout_with_graphs(tiny) -> None:
    """Graphs read the segmentations of each epoch at the addresses where they were captured."""
    generator = torch.Generator().manual_seed(7)
    words = " ".join(TEXT).split(" ")

    def draw() -> str:
        size = int(torch.randint(1, 12, (), generator=generator))
        return " ".join(
            words[i] for i in torch.randint(0, len(words), (size,), generator=generator)
        )

    texts = [draw() for _ in range(97)]
    pairs = list(zip(texts, texts, strict=True))
    tokenizers = TokenizerPair.train(Bpe(vocab_size=330), pairs, ())
    bpe_dropout = BpeDropout(pairs, tokenizers, 0.3, seed=1)
    buckets = Buckets.choose(bpe_dropout.sampled_lengths, 3)
    size, settings = tokenizers.source.vocab_size, tiny("transformer").training
    results, steps = [], []
    for graphs in (False, True):
        torch.manual_seed(3)
        model = build(tiny("transformer").model, size, size, True).to("cuda")
        dataset = DeviceDataset(bpe_dropout.epoch(0), "cuda", bpe_dropout.capacity)
        train_step = TrainStep(model, settings, dataset, torch.float32, graphs, print)
        start = copy_weights(train_step)
        for number in range(5):
            epoch = bpe_dropout.epoch(number)
            dataset.update(epoch)
            run_steps(
                train_step, BatchSampler(epoch, 10**6, 16, 1, 3, False, buckets).epoch(number)
            )
        results.append(copy_weights(train_step))
        steps.append(train_step)
    assert 0 < len(steps[1].captured_steps) <= 3
    assert_same_training(start, results[0], results[1], tolerance=0.01)
    assert steps[1].mean_loss() == pytest.approx(steps[0].mean_loss(), rel=0.01)


def test_model_that_reads_a_number_is_not_captured(make, batches, monkeypatch) -> None:
    original = step.objective

    def synchronize(*args: Any) -> Tensor:
        loss = original(*args)
        float(loss.detach())
        return loss

    expected = run_steps(make("transformer", graphs=False), batches)
    monkeypatch.setattr(step, "objective", synchronize)
    for count in (1, 2):
        log: list[str] = []
        train_step = make("transformer", log=log.append, accumulation_steps=count)
        start = copy_weights(train_step)
        weights = run_steps(train_step, batches)
        [line] = log
        assert "CUDA graphs are off: this model cannot be captured" in line
        assert "synchronizing" in line
        assert not train_step.captured_steps
        if count == 1:
            assert_same_training(start, expected, weights, tolerance=0.01)
        assert torch.cuda.get_sync_debug_mode() == 0


# --- half precision and loss scaling --------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_like_float32(make, batches, family: str, precision: str) -> None:
    float32, half = make(family), make(family, PRECISIONS[precision])
    start = copy_weights(float32)
    one, two = run_steps(float32, batches), run_steps(half, batches)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert {p.dtype for p in half.compute_model.parameters()} == {PRECISIONS[precision]}
    first = float32.mean_loss()
    assert half.mean_loss() == pytest.approx(first, rel=0.05)
    assert_same_training(start, one, two, tolerance=0.5)
    losses = []
    for train_step in (float32, half):
        train_step.reset_loss()
        run_steps(train_step, batches)
        losses.append(train_step.mean_loss())
    assert max(losses) < 0.97 * first


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_overflow_skips_the_step_and_halves_the_scale(make, batches, graphs, count) -> None:
    """Inside a graph, too: the scale is far too large at first and reaches one that works."""
    train_step = make("transformer", torch.float16, graphs, accumulation_steps=count)
    train_step.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**26)
    start = copy_weights(train_step)
    first = batches[:count]
    for number in range(4):
        train_step(first, 0.01, number)
    assert distance(start, copy_weights(train_step)) == 0.0
    assert train_step.scaler.get_scale() == 2.0**22
    for number in range(24):
        train_step(first, 0.01, number)
    assert distance(start, copy_weights(train_step)) > 0.1
    assert 1.0 <= train_step.scaler.get_scale() < 2.0**22
    assert train_step.mean_loss() < 3.5  # finite, and no loss of a skipped step distorts it
    assert bool(train_step.captured_steps) == graphs


def test_scale_grows_inside_a_graph(make, batches) -> None:
    train_step = make("transformer", torch.float16)
    train_step.scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=5)
    for number in range(10):
        train_step(batches[:1], 0.001, number)
    assert train_step.captured_steps
    assert train_step.scaler.get_scale() == 16.0


def test_auto_precision_is_supported() -> None:
    assert select_dtype("auto", "cuda") in (torch.bfloat16, torch.float16, torch.float32)
    assert select_dtype("auto", "cuda:0") == select_dtype("auto", "cuda")
    if torch.cuda.get_device_capability() >= (8, 0):
        assert select_dtype("auto", "cuda") == torch.bfloat16


def test_every_model_kind_trains_in_half_precision(registry, kinds, data) -> None:
    """One step each: the loss is near that of float32, and the update is finite and not zero."""
    spec = BatchSampler(data, 10**6, 16, seed=1).epoch(0)[0]
    dataset = DeviceDataset(data, "cuda")
    wrong: dict[str, Any] = {}
    for name, table in kinds.items():
        losses: dict[torch.dtype, float] = {}
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            model = registry.make(table | {"dropout": 0.0}).float().to("cuda")
            train_step = TrainStep(model, Training(), dataset, dtype, False, print)
            start = copy_weights(train_step)
            train_step([spec], 0.01, 0)
            losses[dtype] = train_step.mean_loss()
            moved = distance(start, copy_weights(train_step))
            if not 0 < moved < float("inf"):
                wrong[f"{name}, {dtype}: update"] = moved
        for dtype, loss in losses.items():
            if loss != pytest.approx(losses[torch.float32], rel=0.05):
                wrong[f"{name}, {dtype}: loss"] = losses
    assert not wrong


# --- gradient accumulation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        *((family, "float32") for family in ("recurrent", "transformer", "decoder-only")),
        *(("transformer", precision) for precision in ("bfloat16", "float16")),
    ],
)
def test_accumulation_with_graphs(make, data: EncodedPairs, family: str, precision: str) -> None:
    """Three batches in one step equal one large batch, eagerly and replayed."""
    dtype = PRECISIONS[precision]
    sampler = BatchSampler(data, 10**6, 12, seed=1, bucket_shapes=2)
    batches = [batch for epoch in range(4) for batch in sampler.epoch(epoch)]
    batches = batches[: len(batches) // 3 * 3]
    large = [merge(batches[start : start + 3]) for start in range(0, len(batches), 3)]
    whole = make(family, dtype, graphs=False)
    start = copy_weights(whole)
    expected = run_steps(whole, large)
    for graphs in (False, True):
        train_step = make(family, dtype, graphs, accumulation_steps=3)
        weights = run_steps(train_step, batches)
        assert_same_training(start, expected, weights, 0.01 if precision == "float32" else 0.2)
        assert train_step.mean_loss() == pytest.approx(whole.mean_loss(), rel=0.02)
        assert ("update" in train_step.captured_steps) == graphs


def merge(batches: list[BatchSpec]) -> BatchSpec:
    return BatchSpec(
        [row for batch in batches for row in batch.rows],
        max(batch.source_length for batch in batches),
        max(batch.target_length for batch in batches),
    )


# --- whole runs -----------------------------------------------------------------------------------


def fit(config: Config, folder: Path, device: str = "cuda", resume: bool = False) -> str:
    output = io.StringIO()
    train(config, folder, device, resume, Console(file=output, width=200))
    return output.getvalue()


@pytest.mark.parametrize(
    ("precision", "accumulation_steps", "r_drop", "bpe_dropout"),
    [
        ("float32", 1, 0.0, 0.0),
        ("bfloat16", 2, 0.0, 0.0),
        ("float16", 1, 0.0, 0.0),
        ("float32", 1, 2.5, 0.2),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(
    tiny, tmp_path: Path, monkeypatch, precision: str, accumulation_steps: int, r_drop, bpe_dropout
) -> None:
    """From a copy of the folder at step 10, with dropout: the GPU's random generator matters.

    Within a tolerance: the GPU adds up the gradients of embeddings in no fixed order.
    """
    settings = {"precision": precision, "accumulation_steps": accumulation_steps}
    settings |= {"r_drop": r_drop, "average_checkpoints": 2 if bpe_dropout else None}
    config = tiny("transformer", dropout=0.3, ema_decay=0.9, schedule="constant", **settings)
    if bpe_dropout:
        tokenizer = {"kind": "bpe", "vocab_size": 330, "dropout": bpe_dropout}
        config = Config.model_validate(config.model_dump() | {"tokenizer": tokenizer})
    original = checkpoint.save

    def save(
        folder: Path,
        progress: checkpoint.Progress,
        train_step: TrainStep,
        writer: Writer,
        file_checksums: Mapping[str, str],
    ) -> None:
        original(folder, progress, train_step, writer, file_checksums)
        writer.wait()
        if progress.step == 10:
            shutil.copytree(folder, tmp_path / "run")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        fit(config, tmp_path / "uninterrupted")
    before = read(tmp_path / "run" / checkpoint.FILE)[0]
    torch.cuda.manual_seed(99)
    torch.manual_seed(99)
    assert "resuming at step 10" in fit(config, tmp_path / "run", resume=True)
    states = [read(tmp_path / name / checkpoint.FILE) for name in ("uninterrupted", "run")]
    (one, progress), (two, resumed) = states
    assert progress["step"] == resumed["step"] > 10
    assert one.keys() == two.keys()
    assert ("extra.scale" in one) == (precision == "float16")
    assert torch.equal(one["rng.cuda"], two["rng.cuda"])
    weights = [{k: v for k, v in state.items() if k.startswith("model.")} for state in (one, two)]
    moved = distance({k: before[k] for k in weights[0]}, weights[0])
    assert distance(*weights) < (0.02 if precision == "float32" else 0.2) * moved
    assert resumed["best_loss"] == pytest.approx(progress["best_loss"], rel=0.01)


def test_device_with_an_index(tiny, tmp_path: Path) -> None:
    """Train on cuda:0 and translate there and on the CPU."""
    config = tiny("recurrent", precision="float32")
    assert "cuda:0" in fit(config, tmp_path / "run", "cuda:0")
    torch.set_float32_matmul_precision("highest")  # training has allowed TF32
    translators = [regard.load(tmp_path / "run", device) for device in ("cpu", "cuda:0", "auto")]
    assert [str(translator.device) for translator in translators] == ["cpu", "cuda:0", "cuda:0"]
    texts = ["a b c", "d e f g h"]
    outputs = [translator.translate(texts, beam=3) for translator in translators]
    for one, two, three in zip(*outputs, strict=True):
        assert one.text == two.text == three.text
        assert one.score == pytest.approx(two.score, abs=1e-4)
    count = torch.cuda.device_count()
    with pytest.raises(UserError, match=f"there is no device cuda:{count}: PyTorch finds"):
        regard.load(tmp_path / "run", f"cuda:{count}")


def test_out_of_memory_says_what_to_do(tiny, tmp_path: Path) -> None:
    with (
        pytest.raises(
            UserError, match=r"out of memory: lower training\.batch_tokens \(now 4,096\)"
        ),
        report_out_of_memory(4096),
    ):
        torch.empty(2**50, device="cuda")
    total = torch.cuda.get_device_properties("cuda").total_memory
    config = tiny("transformer")
    large = config.model.model_copy(update={"d_model": 512, "d_ff": 16_384})
    torch.cuda.empty_cache()
    try:
        allowed = torch.cuda.memory_reserved() + 2**26
        torch.cuda.set_per_process_memory_fraction(allowed / total)
        with pytest.raises(UserError, match="out of memory"):
            fit(config.model_copy(update={"model": large}), tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert not (tmp_path / "run").exists()


def test_windows_of_text_on_disk_keep_cuda_graphs(make, tmp_path, monkeypatch):
    """Windows take turns in the memory whose addresses the graphs have."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr(shards, "PAIRS", 7)
    monkeypatch.setattr(shard_writer, "count_cores", lambda: 1)
    pairs = [("abcdefgh"[: 1 + n % 7] * 2, "hgfedcba"[n % 5 :]) for n in range(97)]
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    stream = open_stream(FileData(train=str(path), val=str(path), storage="disk"))
    tokenizers = TokenizerPair.train(Characters(), pairs, ())
    data = ShardedPairs(shard_writer.write_shards(stream, tokenizers), tokenizers)
    sampler = WindowSampler(data, 10**6, 8, 1, bucket_shapes=2, buffer=21)
    batches = [batch for epoch in range(3) for batch in sampler.epoch(epoch)]
    weights = []
    for graphs in (True, False):
        train_step = make("transformer", graphs=graphs)
        train_step.data = WindowDataset(sampler, "cuda")
        start = copy_weights(train_step)
        weights.append(run_steps(train_step, batches))
        assert bool(train_step.captured_steps) == graphs
    assert_same_training(start, *weights, tolerance=0.01)
