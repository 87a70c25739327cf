"""Self-attention over long sequences: `regard bench long --json`, a minute and a half on an H200.

Each contender is one attention layer with its projections (d_model 512, 8 heads), causal, forwards and
backwards, in bfloat16 on a GPU that supports it. A step on a GPU has 32,768 tokens: one sequence of that
length, or several shorter ones. Baseline: the same projections around PyTorch's fused causal attention.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard import config
from regard.attention import MaskRule, MultiHeadBase
from regard.attention.heads import merge_heads, split_heads
from regard.attention.long import FUSED
from regard.benchmarks.timing import Contender, interleave, summarize
from regard.errors import UserError
from regard.linear import Linear
from regard.models.build import build_heads
from regard.training.device import select_dtype, use_cuda_stream

D_MODEL, HEADS, WINDOW = 512, 8, 1024
TOKENS = 32_768  # in a step on a GPU
CPU_LENGTH = 4096
MATRIX_LENGTH = 8192  # beyond it, the matrices of one layer fill a large GPU
BASELINE = "PyTorch, no positions"
POSITIONS: dict[str, dict[str, Any]] = {
    "rotary": {"position": "rotary"},
    "alibi": {"position": "alibi"},
    "window": {"position": "rotary", "attention": {"window": WINDOW}},
    "relative": {"position": "relative"},
    "relative, query": {"position": {"kind": "relative", "form": "query"}},
}
WITH_MATRIX = ("rotary", "alibi", "relative")


@dataclass
class Row:
    """What is known of a contender: its memory and first step, and its speed unless it failed."""

    contender: Contender
    length: int
    peak_mib: float | None = None
    first_seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Long:
    """Tokens per second and peak memory of self-attention at 2,048 to 32,768 tokens, by kind of position."""

    rounds: int = 5
    lengths: tuple[int, ...] = (2048, 8192, 32_768)
    device: str = "cpu"
    seconds: float = 120.0
    """No contender is started later; those left out say so."""
    started: float = field(default_factory=time.perf_counter)

    def run(self, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
        """Measure the longest sequences first: if time is short, it is for the others."""
        if self.device == "cpu" and max(self.lengths) > CPU_LENGTH:
            raise UserError(
                f"{max(self.lengths):,} tokens need an NVIDIA GPU: attention takes minutes on a CPU. Here, "
                f"choose lengths up to {CPU_LENGTH:,}, as in --lengths 1024"
            )
        rows = []
        with use_cuda_stream(self.device):
            for length in sorted(set(self.lengths), reverse=True):
                rows = [*self.measure(length, report), *rows]
        return {
            "device": self.device_name(),
            "precision": self.precision,
            "d_model": D_MODEL,
            "heads": HEADS,
            "window": WINDOW,
            "tokens": max(self.lengths) if self.device == "cpu" else TOKENS,
            "rows": rows,
        }

    def measure(self, length: int, report: Callable[[str], object]) -> list[dict[str, Any]]:
        """The rows of one length: a first step each, which compiles, then interleaved rounds."""
        rows = [Row(contender, length) for contender in self.contenders(length)]
        for row in rows:
            if time.perf_counter() - self.started > self.seconds:
                row.error = f"not measured: {self.seconds:g} seconds were over"
                continue
            self.try_step(row)
            report(f"{length:,} tokens, {row.contender.name}: {row.error or 'works'}")
        working = [row.contender for row in rows if row.error is None]
        if working:
            interleave(working, self.rounds, report=report)
        return [to_record(row, rows[0].contender.speeds) for row in rows]

    def try_step(self, row: Row) -> None:
        """Two steps: one that compiles, and one whose memory counts. An error is of this contender alone."""
        started = time.perf_counter()
        try:
            row.contender.run()
            self.synchronize()
            row.first_seconds = time.perf_counter() - started
            if self.device != "cpu":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                row.contender.run()
                self.synchronize()
                row.peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
        except Exception as error:  # whatever a compiler raises
            row.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if self.device != "cpu":
                torch.cuda.empty_cache()

    def contenders(self, length: int) -> list[Contender]:
        """PyTorch, every kind of position, and some of them with a matrix as the mask."""
        batch = 1 if self.device == "cpu" else max(1, TOKENS // length)
        layers: dict[str, Callable[[Tensor], Tensor]] = {BASELINE: self.place(PlainCausal())}
        for name, table in POSITIONS.items():
            layer = self.place(build_layer(table))
            layers[name] = partial(attend_causally, layer, False)
            if name in WITH_MATRIX and length <= MATRIX_LENGTH:
                layers[f"{name}, matrix"] = partial(attend_causally, layer, True)
        task, precision = f"{length:,}", self.precision
        shape = batch, length, D_MODEL
        return [
            Contender(name, task, partial(self.step, layer, shape), precision, batch)
            for name, layer in layers.items()
        ]

    def step(self, layer: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> int:
        """Output and gradients of one batch."""
        x = torch.randn(shape, device=self.device, dtype=self.dtype).requires_grad_()
        output = layer(x)
        output.backward(x.detach())
        return shape[0] * shape[1]

    def place(self, layer: nn.Module) -> Any:
        return layer.to(self.device, self.dtype)

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    @property
    def dtype(self) -> torch.dtype:
        return select_dtype("auto", self.device)

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def device_name(self) -> str:
        return "cpu" if self.device == "cpu" else torch.cuda.get_device_name(self.device)


class PlainCausal(nn.Module):
    """The projections of `MultiHead` around PyTorch's fused causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query = Linear(D_MODEL, D_MODEL, bias=False)
        self.key_value = Linear(D_MODEL, 2 * D_MODEL, bias=False)
        self.output = Linear(D_MODEL, D_MODEL, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        keys, values = (split_heads(half, HEADS) for half in self.key_value(x).chunk(2, dim=-1))
        query = split_heads(self.query(x), HEADS)
        with sdpa_kernel(FUSED):
            heads = scaled_dot_product_attention(query, keys, values, is_causal=True)
        return self.output(merge_heads(heads))


def build_layer(table: dict[str, Any]) -> MultiHeadBase:
    """The self-attention of a decoder-only model."""
    attention = {"heads": HEADS} | table.get("attention", {})
    return build_heads(
        config.DecoderOnly.model_validate(
            {"d_model": D_MODEL, "position": table["position"], "attention": attention}
        ),
        0,
    )


def attend_causally(layer: MultiHeadBase, as_matrix: bool, x: Tensor) -> Tensor:
    ids = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    rule = MaskRule(ids, ids, latest=0, is_self=True)
    return layer.self_attend(x, rule.matrix() if as_matrix else rule, ids)[0]


def to_record(row: Row, baseline: list[float]) -> dict[str, Any]:
    """One row of the result; figures are missing where the contender failed."""
    speeds = row.contender.speeds
    figures = {"median": None, "range": None, "ratio": None, "ratio_range": None}
    if speeds:
        summary = summarize(row.contender, baseline or speeds, None)
        figures = {name: summary[name] for name in figures}
    return {
        "length": row.length,
        "contender": row.contender.name,
        "batch": row.contender.batch,
        **figures,
        "peak_mib": row.peak_mib,
        "matrix_mib": row.contender.batch * row.length**2 / 2**20,
        "first_seconds": row.first_seconds,
        "error": row.error,
    }


def tabulate(result: dict[str, Any]) -> Table:
    title = (
        "{device}, {precision}, {tokens:,} tokens per step, d_model {d_model}, {heads} heads, window "
        "{window:,}. Ratios: to PyTorch's fused causal attention, within each round"
    ).format(**result)
    table = Table(
        title=title, box=None, header_style="bold", title_justify="left", caption_justify="left"
    )
    columns = ("length", "contender", "tokens/s", "ratio", "peak MiB", "mask as matrix, MiB")
    for name in columns:
        table.add_column(name, justify="left" if name == "contender" else "right")
    for row in result["rows"]:
        figures = ["failed", "", ""]
        if row["median"] is not None:
            figures[0] = "{:,.0f} ({:,.0f}-{:,.0f})".format(row["median"], *row["range"])
            figures[1] = "{:.2f} ({:.2f}-{:.2f})".format(row["ratio"], *row["ratio_range"])
        figures[2] = "" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}"
        size = f"{row['matrix_mib']:,.0f}"
        table.add_row(f"{row['length']:,}", row["contender"], *figures, size)
    errors = [row for row in result["rows"] if row["error"]]
    lines = ["{length:,} tokens, {contender}: {error}".format(**row) for row in errors]
    table.caption = Text("\n".join(lines)) if lines else None
    return table
