"""Training speed: target tokens per second. Padding is never counted.

Two tasks, each with a common implementation as its baseline, on random text with the lengths of real text:

    recurrent     a GRU with attention. Baseline (course loop): the course's loop over target positions,
                  unsorted batches, keys recomputed at every position. Second (lean loop): batches of
                  similar lengths, keys computed once.
    transformer   baseline: PyTorch's `nn.Transformer`, `cross_entropy` and AdamW, without CUDA graphs, under
                  autocast if the GPU supports bfloat16, on batches of similar lengths.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from regard import config
from regard.benchmarks.lengths import load_lengths
from regard.benchmarks.timing import Contender, Result, interleave, measure_matmul_rate
from regard.models import Model, build
from regard.models.recurrent import Recurrent
from regard.text.batch import Batch, BatchSampler, BatchSpec, DeviceDataset, EncodedPairs
from regard.text.tokenizer import PAD
from regard.training.device import select_dtype, use_cuda_stream
from regard.training.step import TrainStep

TASKS = ("recurrent", "transformer")
VOCAB_SIZE = 8000
TRAINING = config.Training(label_smoothing=0.1, ema_decay=0.99, batch_tokens=10**9)
GRU = config.Recurrent(
    embedding_dim=256, hidden_dim=512, dropout=0.3, attention=config.SingleHead(kq_dim=512)
)
FOUR_LAYERS = config.TransformerStack(layers=4)
TRANSFORMER = config.Transformer(
    d_model=256, d_ff=768, dropout=0.3, encoder=FOUR_LAYERS, decoder=FOUR_LAYERS
)


@dataclass(frozen=True)
class Training:
    """Target tokens per second, compared with a loop over time steps and plain PyTorch."""

    rounds: int = 5
    batch: int = 128
    device: str = "cpu"
    steps: int = 4
    tasks: tuple[str, ...] = TASKS
    sentences: int = 29_000

    def run(self, report: Callable[[str], object] = lambda line: None) -> Result:
        """Time all contenders and compare them."""
        gpu = self.device.startswith("cuda")
        if gpu:
            torch.set_float32_matmul_precision("high")
        description, lengths = load_lengths("train", self.sentences)
        data = random_pairs(lengths)
        builders = {"recurrent": self.recurrent, "transformer": self.transformer}
        with use_cuda_stream(self.device):
            contenders = [one for task in self.tasks for one in builders[task](data)]
            rate = measure_matmul_rate(self.device, select_dtype("auto", self.device))
            interleave(contenders, self.rounds, None, None, report)
            rate = max(rate, measure_matmul_rate(self.device, select_dtype("auto", self.device)))
        threads = f", {torch.get_num_threads()} threads" if not gpu else ""
        about = (
            f"training on {self.device}{threads}, {self.steps} batches per round, {description}; a "
            f"large matrix multiplication runs at {rate / 1e12:.3g} TFLOP/s"
        )
        return Result.of(about, "tokens/s", contenders, rate)

    def recurrent(self, data: EncodedPairs) -> Iterator[Contender]:
        """The two loops over time steps, and Regard."""
        flops = flops_per_token(build_model(GRU, "cpu"), data)

        def contender(name: str, run: Callable[[], int], precision: str = "float32") -> Contender:
            return Contender(name, "recurrent", run, precision, self.batch, flops)

        unsorted = [
            BatchSpec(list(range(start, start + self.batch)), 0, 0)
            for start in range(0, self.sentences - self.batch, self.batch)
        ]
        for name, batches in (("course loop", unsorted), ("lean loop", self.bucketed(data))):
            model = build_model(GRU, self.device)
            assert isinstance(model, Recurrent)
            loss = StepwiseLoss(model, reuse_keys=name == "lean loop")
            yield contender(name, self.plain_steps(loss, batches, data))
        yield contender("regard", self.regard_steps(GRU, data), self.precision)

    def transformer(self, data: EncodedPairs) -> Iterator[Contender]:
        """Plain PyTorch, and Regard."""
        flops = flops_per_token(build_model(TRANSFORMER, "cpu"), data)
        loss = PlainTransformer(TRANSFORMER, self.device)
        runs = {
            "plain PyTorch": self.plain_steps(loss, self.bucketed(data), data),
            "regard": self.regard_steps(TRANSFORMER, data),
        }
        for name, run in runs.items():
            yield Contender(name, "transformer", run, self.precision, self.batch, flops)

    @property
    def precision(self) -> str:
        return str(select_dtype("auto", self.device)).removeprefix("torch.")

    def bucketed(self, data: EncodedPairs) -> list[BatchSpec]:
        """Full batches of sentences of similar lengths."""
        batches = BatchSampler(data, 10**9, self.batch, seed=1).epoch(0)
        return [batch for batch in batches if len(batch.rows) == self.batch]

    def plain_steps(
        self, loss: "StepwiseLoss | PlainTransformer", batches: list[BatchSpec], data: EncodedPairs
    ) -> Callable[[], int]:
        """Training steps in plain PyTorch: batch, loss, backward, gradient clipping, AdamW."""
        parameters = list(loss.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        is_float16 = loss.dtype == torch.float16
        scaler = torch.amp.GradScaler(self.device.partition(":")[0], enabled=is_float16)
        remaining = cycle(batches)

        def run() -> int:
            tokens = 0
            for _ in range(self.steps):
                batch = data.batch(next(remaining).rows)
                tokens += batch.num_tokens
                scaler.scale(loss(batch.to(self.device))).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            return tokens

        return run

    def regard_steps(self, table: object, data: EncodedPairs) -> Callable[[], int]:
        """The training steps of `regard train`."""
        gpu = self.device.startswith("cuda")
        batches = BatchSampler(data, 10**9, self.batch, 1, TRAINING.bucket_shapes if gpu else None)
        model, dataset = build_model(table, self.device), DeviceDataset(data, self.device)
        dtype = select_dtype("auto", self.device)
        train_step = TrainStep(model, TRAINING, dataset, dtype, gpu, print)
        remaining = cycle(batches.epoch(0))
        if gpu:  # capture the CUDA graph of every shape before timing
            for batch in 2 * batches.epoch(0):
                if len(train_step.captured_steps) < len(batches.buckets.shapes):
                    train_step([batch], 1e-4, 0)

        def run() -> int:
            tokens = 0
            for _ in range(self.steps):
                batch = next(remaining)
                train_step([batch], 1e-4, 0)
                tokens += batches.count_tokens(batch)
            return tokens

        return run


class StepwiseLoss(nn.Module):
    """Teacher forcing, one target position at a time; `reuse_keys` computes the keys once."""

    dtype = torch.float32

    def __init__(self, model: Recurrent, reuse_keys: bool) -> None:
        super().__init__()
        self.model, self.reuse_keys = model, reuse_keys

    def forward(self, batch: Batch) -> Tensor:
        model = self.model
        memory = model.encode(batch.source, batch.source_mask)
        state = model.init_state(memory)
        logits = []
        for tokens in batch.target.unbind(1):
            if not self.reuse_keys and model.decoder.attention:
                state.keys = model.decoder.attention.keys(memory.states)
            step_logits, state = model.step(tokens, state)
            logits.append(step_logits)
        flat = torch.stack(logits, dim=1).flatten(0, 1)
        labels = batch.labels.flatten()
        return cross_entropy(flat, labels, ignore_index=PAD, label_smoothing=0.1)


class PlainTransformer(nn.Module):
    """The loss of PyTorch's `nn.Transformer`, with tied embeddings and output projection."""

    def __init__(self, table: config.Transformer, device: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, table.d_model)
        nn.init.normal_(self.embedding.weight, std=table.d_model**-0.5)
        sizes = (table.d_model, table.attention.heads, table.encoder.layers, table.decoder.layers)
        with warnings.catch_warnings():  # about nested tensors, which training does not use
            warnings.simplefilter("ignore", UserWarning)
            self.inner = nn.Transformer(
                *sizes, table.d_ff, table.dropout, batch_first=True, norm_first=True
            )
        self.to(device)
        self.dtype = select_dtype("auto", device)

    def forward(self, batch: Batch) -> Tensor:
        device, length = batch.source.device, batch.target.shape[1]
        future = torch.ones(length, length, device=device, dtype=torch.bool).triu(1)
        with torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32):
            states = self.inner(
                self.embedding(batch.source),
                self.embedding(batch.target),
                tgt_mask=future,
                src_key_padding_mask=~batch.source_mask,
                memory_key_padding_mask=~batch.source_mask,
            )
            logits = nn.functional.linear(states, self.embedding.weight)
        labels = batch.labels.flatten()
        return cross_entropy(
            logits.flatten(0, 1).float(), labels, ignore_index=PAD, label_smoothing=0.1
        )


def build_model(table: object, device: str) -> Model:
    torch.manual_seed(0)
    return build(table, VOCAB_SIZE, VOCAB_SIZE, joint=True).to(device)


def random_pairs(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Random token ids with these (source, target) lengths."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(4, VOCAB_SIZE, (count,), generator=generator).tolist()

    return EncodedPairs(
        [ids(source) for source, _ in lengths], [ids(target) for _, target in lengths]
    )


def flops_per_token(model: Model, data: EncodedPairs) -> float:
    """FLOPs of a training step per target token, counted by PyTorch on a batch without padding.

    The backward pass costs twice the forward pass.
    """
    columns = zip(*data.lengths(), strict=True)
    target, source = (round(sum(column) / len(data)) for column in columns)
    ids = torch.full((8, source), 5), torch.ones(8, source, dtype=torch.bool)
    # PyTorch's counter ignores fused attention on the CPU, but counts its unfused form.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.eval()(*ids, torch.full((8, target + 1), 5))
    return 3 * counter.get_total_flops() / (8 * (target + 1))
