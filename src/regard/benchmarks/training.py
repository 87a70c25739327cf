"""How many target tokens a second does training learn from? Padding never counts.

Two tasks, each with the usual way to write it as a baseline, on random text of true lengths:

    recurrent     a GRU with attention. Baseline: the course's loop over target positions, batches as the
                  sentences come, keys made anew at every position. Between: a lean loop, which has
                  batches of sentences of about one length and makes the keys once.
    transformer   baseline: PyTorch's own `nn.Transformer`, `cross_entropy` and AdamW, a step at a time,
                  under autocast where there is bfloat16, on batches of sentences of about one length.
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
from regard.benchmarks.lengths import lengths
from regard.benchmarks.timing import Result, Side, interleave, matrix_rate
from regard.models import Model, build
from regard.models.recurrent import Recurrent
from regard.text.batch import Batch, Batches, Cut, Encoded, Resident
from regard.text.tokenizer import PAD
from regard.training.run import dtype, own_stream
from regard.training.update import Update

TASKS = ("recurrent", "transformer")
VOCABULARY = 8000
TRAINING = config.Training(label_smoothing=0.1, ema_decay=0.99, batch_tokens=10**9)
GRU = config.Recurrent(
    embedding_dim=256, hidden_dim=512, dropout=0.3, attention=config.SingleHead(kq_dim=512)
)
FOUR = config.TransformerStack(layers=4)
TRANSFORMER = config.Transformer(d_model=256, d_ff=768, dropout=0.3, encoder=FOUR, decoder=FOUR)


@dataclass(frozen=True)
class Training:
    """Target tokens a second, beside the loop over time and plain PyTorch."""

    rounds: int = 5
    batch: int = 128
    device: str = "cpu"
    steps: int = 4
    tasks: tuple[str, ...] = TASKS
    sentences: int = 29_000

    def run(self, report: Callable[[str], object] = lambda line: None) -> Result:
        """Time every side and compare."""
        gpu = self.device.startswith("cuda")
        if gpu:
            torch.set_float32_matmul_precision("high")
        whose, sizes = lengths("train", self.sentences)
        data = text(sizes)
        makers = {"recurrent": self.recurrent, "transformer": self.transformer}
        with own_stream(gpu):
            sides = [side for task in self.tasks for side in makers[task](data)]
            rate = matrix_rate(self.device, dtype("auto", self.device))
            interleave(sides, self.rounds, None, None, report)
            rate = max(rate, matrix_rate(self.device, dtype("auto", self.device)))
        threads = f", {torch.get_num_threads()} threads" if not gpu else ""
        about = (
            f"training on {self.device}{threads}, {self.steps} batches a turn, {whose}; a large "
            f"matrix product here: {rate / 1e12:.3g} TFLOP/s"
        )
        return Result.of(about, "tokens/s", sides, rate)

    def recurrent(self, data: Encoded) -> Iterator[Side]:
        """The loop over time, twice, and ours."""
        flops = flops_a_token(model_of(GRU, "cpu"), data)

        def side(name: str, work: Callable[[], int], precision: str = "float32") -> Side:
            return Side(name, "recurrent", work, precision, self.batch, flops)

        as_they_come = [
            Cut(list(range(start, start + self.batch)), 0, 0)
            for start in range(0, self.sentences - self.batch, self.batch)
        ]
        for name, cuts in (("course loop", as_they_come), ("lean loop", self.cuts(data))):
            model = model_of(GRU, self.device)
            assert isinstance(model, Recurrent)
            lean = name == "lean loop"
            yield side(name, self.steps_of(Loop(model, lean), cuts, data))
        yield side("regard", self.ours(GRU, data), self.precision)

    def transformer(self, data: Encoded) -> Iterator[Side]:
        """Plain PyTorch, and ours."""
        flops = flops_a_token(model_of(TRANSFORMER, "cpu"), data)
        plain = self.steps_of(Plain(TRANSFORMER, self.device), self.cuts(data), data)
        sides = {"plain PyTorch": plain, "regard": self.ours(TRANSFORMER, data)}
        for name, work in sides.items():
            yield Side(name, "transformer", work, self.precision, self.batch, flops)

    @property
    def precision(self) -> str:
        return str(dtype("auto", self.device)).removeprefix("torch.")

    def cuts(self, data: Encoded) -> list[Cut]:
        """Batches of sentences of about one length."""
        made = Batches(data, 10**9, self.batch, seed=1).epoch(0)
        return [cut for cut in made if len(cut.rows) == self.batch]

    def steps_of(self, loss: "Loop | Plain", cuts: list[Cut], data: Encoded) -> Callable[[], int]:
        """A few ordinary steps: batch, loss, backward, clip, AdamW."""
        parameters = list(loss.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        turns = cycle(cuts)

        def work() -> int:
            learned = 0
            for _ in range(self.steps):
                batch = data.batch(next(turns).rows)
                learned += batch.tokens
                loss(batch.to(self.device)).backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            return learned

        return work

    def ours(self, table: object, data: Encoded) -> Callable[[], int]:
        """What `regard train` does."""
        gpu = self.device.startswith("cuda")
        batches = Batches(data, 10**9, self.batch, 1, TRAINING.bucket_shapes if gpu else None)
        precision, there = dtype("auto", self.device), Resident(data, self.device)
        update = Update(model_of(table, self.device), TRAINING, there, precision, gpu, print)
        turns = cycle(batches.epoch(0))
        if gpu:  # recording each shape once is not what is measured here
            for cut in 2 * batches.epoch(0):
                if len(update.recordings) < len(batches.shaped.widths):
                    update(cut, 1e-4, 0)

        def work() -> int:
            learned = 0
            for _ in range(self.steps):
                cut = next(turns)
                update(cut, 1e-4, 0)
                learned += batches.tokens_in(cut)
            return learned

        return work


class Loop(nn.Module):
    """Teacher forcing, one target position after another; `lean` makes the keys once."""

    def __init__(self, model: Recurrent, lean: bool) -> None:
        super().__init__()
        self.model, self.lean = model, lean

    def forward(self, batch: Batch) -> Tensor:
        model = self.model
        memory = model.encode(batch.source, batch.source_mask)
        state = model.begin(memory)
        logits = []
        for tokens in batch.target.unbind(1):
            if not self.lean and model.decoder.attention:
                state.keys = model.decoder.attention.keys(memory.states)
            row, state = model.step(tokens, state)
            logits.append(row)
        flat = torch.stack(logits, dim=1).flatten(0, 1)
        wanted = batch.wanted.flatten()
        return cross_entropy(flat, wanted, ignore_index=PAD, label_smoothing=0.1)


class Plain(nn.Module):
    """PyTorch's Transformer with an embedding that is its output map, too."""

    def __init__(self, table: config.Transformer, device: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, table.d_model)
        nn.init.normal_(self.embedding.weight, std=table.d_model**-0.5)
        sizes = (table.d_model, table.attention.heads, table.encoder.layers, table.decoder.layers)
        with warnings.catch_warnings():  # about nested tensors, which training does not use
            warnings.simplefilter("ignore", UserWarning)
            self.inner = nn.Transformer(
                *sizes, table.d_ff, table.dropout, batch_first=True, norm_first=True
            )
        self.to(device)

    def forward(self, batch: Batch) -> Tensor:
        device = batch.source.device.type
        half = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        length = batch.target.shape[1]
        future = torch.ones(length, length, device=device, dtype=torch.bool).triu(1)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            states = self.inner(
                self.embedding(batch.source),
                self.embedding(batch.target),
                tgt_mask=future,
                src_key_padding_mask=~batch.source_mask,
                memory_key_padding_mask=~batch.source_mask,
            )
            logits = nn.functional.linear(states, self.embedding.weight)
        wanted = batch.wanted.flatten()
        return cross_entropy(
            logits.flatten(0, 1).float(), wanted, ignore_index=PAD, label_smoothing=0.1
        )


def model_of(table: object, device: str) -> Model:
    torch.manual_seed(0)
    return build(table, VOCABULARY, VOCABULARY, joint=True).to(device)


def text(sizes: list[tuple[int, int]]) -> Encoded:
    """Random words, so many on each side."""
    random = torch.Generator().manual_seed(0)

    def words(count: int) -> list[int]:
        return torch.randint(4, VOCABULARY, (count,), generator=random).tolist()

    return Encoded([words(source) for source, _ in sizes], [words(target) for _, target in sizes])


def flops_a_token(model: Model, data: Encoded) -> float:
    """Of a whole step (backward costs twice what forward does), by PyTorch's own count of the
    products, on a batch without padding.
    """
    sides = zip(*data.lengths(), strict=True)
    target, source = (round(sum(side) / len(data)) for side in sides)
    ids = torch.full((8, source), 5), torch.ones(8, source, dtype=torch.bool)
    # PyTorch counts nothing for the CPU's fused attention, but it does for its plain products.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.eval()(*ids, torch.full((8, target + 1), 5))
    return 3 * counter.get_total_flops() / (8 * (target + 1))
