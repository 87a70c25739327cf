"""Causality: a decoder's output at a position does not depend on later tokens."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field, ValidationError
from torch import Generator, Tensor

from regard.attention import SCORES, MultiHead
from regard.config import Config
from regard.diagrams.themes import Theme
from regard.errors import UserError
from regard.labs.cases import check_cases
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable, Value
from regard.labs.measurements.config_variants import Variant, kind_pairs, table_variants
from regard.labs.plotting import add_legend, add_subplots
from regard.models import Model, build

ROUNDING = 1e-9  # of float64, through a few layers
MIN_EFFECT = 1e-4  # smallest change that counts as one, as a fraction of the largest logit
VOCAB, SOURCE_LENGTH = 13, 5
Changes = Float[Tensor, "changed output"]


class CausalityParameters(Parameters):
    length: int = Field(7, ge=2, le=48)
    """T, number of target tokens; each is changed in turn."""
    token_step: int = Field(1, ge=0, le=VOCAB - 2)
    """By how many places in the vocabulary a token is changed; 0 changes nothing, as a control."""


def model_variants() -> Iterator[Variant]:
    """Every option of a model config, one at a time, and every pair of kinds."""
    for member in get_args(Config.model_fields["model"].annotation):
        family = get_args(member)[0]
        yield from (*table_variants(family), *kind_pairs(family))


def build_small(variant: Variant) -> Model:
    """A small model in float64. Incompatible options raise the usual errors."""
    table = Config(model=variant.value).model
    return build(table, VOCAB, VOCAB, joint=False).double().eval()


def skip_reason(error: ValidationError | UserError) -> str:
    """Why a variant was rejected, without the name of the kind and without advice, so that reasons group."""
    first = error.errors()[0] if isinstance(error, ValidationError) else None
    if first and first["type"] == "missing":
        return f"its {first['loc'][-1]} has no default, so no model can be built"
    message = str(first.get("ctx", {}).get("error", first["msg"]) if first else error)
    return re.sub(' "[^"]*"', "", message.partition(": ")[0])


@torch.no_grad()
def output_changes(model: Model, params: CausalityParameters, generator: Generator) -> Changes:
    """Change of the logits at s when token t changes, relative to the largest logit: row t, column s."""
    length = params.length
    source = torch.randint(1, VOCAB, (1, SOURCE_LENGTH), generator=generator).expand(length + 1, -1)
    target = torch.randint(1, VOCAB, (1, length), generator=generator).repeat(length + 1, 1)
    steps = torch.arange(length)
    changed = target[steps, steps] - 1 + params.token_step
    target[steps, steps] = changed % (VOCAB - 1) + 1  # the last row stays unchanged
    logits = model(source, torch.ones_like(source, dtype=torch.bool), target)
    return (logits[:-1] - logits[-1]).abs().amax(-1) / logits[-1].abs().max()


def max_before(changes: Float[Tensor, "*models changed output"]) -> float:
    """The largest change of an output before the changed token."""
    return float(changes.tril(-1).max())


def min_at(changes: Float[Tensor, "*models changed output"]) -> float:
    """The smallest change of the output at the changed token, which the model must read."""
    return float(changes.diagonal(dim1=-2, dim2=-1).min())


# --- the exercise ---------------------------------------------------------------------------------


def mask(new: int, cached: int) -> Tensor:
    """True where j <= cached + i"""
    return torch.arange(cached + new) <= cached + torch.arange(new)[:, None]


@torch.no_grad()
def dependencies(allowed: Tensor, generator: Generator) -> Tensor:
    """True where changing token j changes output i of one attention layer. [j i]"""
    new, length = allowed.shape
    torch.manual_seed(0)
    heads = MultiHead(5, 2, 3, SCORES["scaled-dot"](3, 3)).double()
    x = torch.randn(1, length, 5, dtype=torch.float64, generator=generator).repeat(length + 1, 1, 1)
    steps = torch.arange(length)
    x[steps, steps] = -x[steps, steps]
    position_ids = steps.expand(length + 1, -1)
    keys_values = heads.keys_values(x, position_ids)
    queries = x[-1:, length - new :].expand(length + 1, -1, -1)  # only keys and values change
    allowed = allowed.expand(length + 1, -1, -1)
    outputs = heads(queries, *keys_values, allowed, position_ids[:, length - new :], position_ids)[
        0
    ]
    return (outputs[:-1] - outputs[-1]).abs().amax(-1) > MIN_EFFECT


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Each new token must attend to every token up to and including itself, and to no later one."""
    generator = torch.Generator().manual_seed(0)
    for new, cached in ((1, 0), (5, 0), (1, 6), (3, 4)):
        case = f"new = {new}, cached = {cached}"
        reaches, allowed = dependencies(answer(new, cached), generator), mask(new, cached).T
        for name, wrong, verb in (
            ("later tokens that reach an output", reaches & ~allowed, "reaches"),
            ("earlier tokens that do not reach an output", ~reaches & allowed, "does not reach"),
        ):
            pairs = [
                f"token {j} {verb} new token {i}, at position {cached + i}"
                for j, i in wrong.nonzero()
            ]
            first = f" Here {pairs[0]}." if pairs else ""
            yield Check(
                f"{name} ({case})",
                len(pairs),
                "=",
                0,
                hint="New token i is at position cached + i and may attend to 0 .. cached + i, itself "
                f"included.{first}",
            )


class Causality(Lab):
    """Changing token t changes no output before t."""

    name = "causality"
    claim = "Changing token t changes no output before t, in any causal model"
    derivation = """
A decoder factorises P(y) = prod_s P(y_s | y_<s), so its output at s may depend on tokens 1 .. s only.

attention     a_s = sum_j alpha_sj v_j with e_sj = minus infinity, hence alpha_sj = 0, for j > s
recurrence    d_s = cell(x_s, d_(s-1)): the state depends on tokens read so far only
state space   h_s = exp(Delta_s A) h_(s-1) + Delta_s B_s u_s, after a causal convolution

Normalisation, feed-forward layers and the output projection act on each position separately, so stacking
preserves causality. We change each token t of a target in turn and measure the change of every output s, in
a small model for every option of a model config. The law: 0 for s < t. The effect: nonzero at s = t, because
a model that ignores its input would be causal as well.
"""
    parameters = CausalityParameters
    absent: ClassVar[dict[str, Value]] = {"token_step": 0}
    exercise = Exercise(
        starter='''
def mask(new, cached):
    """Return the causal mask for decoding with a KV cache.

    `cached` tokens are in the cache, and `new` tokens are processed now, in one step. Positions count from 0:
    the new tokens are at cached .. cached + new - 1. Return a boolean tensor [new, cached + new], True where
    the new token of this row may attend to the token of this column.
    """
    raise NotImplementedError
''',
        solution=mask,
        grade=grade,
        background="""
A decoder's output at position s may depend on tokens 0 .. s only, because later tokens are not known when it
is generated. A KV cache holds the keys and values of all tokens so far, so there are more keys than new
queries: the mask is not square.
""",
    )

    def measure(self, params: CausalityParameters, generator: Generator) -> Findings:
        tested: list[tuple[Variant, Changes]] = []
        skipped: list[tuple[Variant, str]] = []
        for variant in model_variants():
            try:
                model = build_small(variant)
            except (ValidationError, UserError) as error:
                skipped.append((variant, skip_reason(error)))
            else:
                tested.append((variant, output_changes(model, params, generator)))
        families: dict[str, dict[str, Changes]] = {}
        for variant, changes in tested:
            families.setdefault(variant.value["kind"], {})[variant.name] = changes
        plotted = [
            (variant, changes)
            for variant, changes in tested
            if set(variant.settings) <= {"kind", "mixer.kind"}
        ]
        return Findings(
            figures={
                "models": len(tested),
                "names": [variant.name for variant, _ in tested],
                "families": [variant.value["kind"] for variant, _ in tested],
                "max_before": [max_before(changes) for _, changes in tested],
                "min_at": [min_at(changes) for _, changes in tested],
                "skipped": [variant.name for variant, _ in skipped],
                "skip_reasons": [reason for _, reason in skipped],
                "plotted": [variant.name for variant, _ in plotted],
                "changes": [changes.tolist() for _, changes in plotted],
            },
            law=[self._check_before(kind, models) for kind, models in families.items()],
            effect=[self._check_at(kind, models) for kind, models in families.items()],
            table=self._table(tested),
            notes=self._notes(skipped),
        )

    @staticmethod
    def _check_before(kind: str, models: dict[str, Changes]) -> Check:
        """The largest leak in one family."""
        return check_cases(
            f"largest change before t, {len(models)} models of kind {kind}",
            {name: max_before(changes) for name, changes in models.items()},
            "<=",
            0,
            ROUNDING,
            hint="Future tokens leak in: {}",
        )

    @staticmethod
    def _check_at(kind: str, models: dict[str, Changes]) -> Check:
        """The model of one family that depends least on its input."""
        return check_cases(
            f"smallest change at t, {len(models)} models of kind {kind}",
            {name: min_at(changes) for name, changes in models.items()},
            ">=",
            MIN_EFFECT,
            hint="A token has no effect on its own output: {}",
        )

    @staticmethod
    def _table(tested: list[tuple[Variant, Changes]]) -> ResultTable:
        """One row for each config field that was varied."""
        groups: dict[tuple[str, str], list[Changes]] = {}
        for variant, changes in tested:
            varied = dict.fromkeys(key.split(".")[0] for key in variant.settings if key != "kind")
            label = " and ".join(varied) or "(baseline)"
            groups.setdefault((variant.value["kind"], label), []).append(changes)
        heads = ["model", "varied", "models", "largest change before t", "smallest change at t"]
        rows = [
            [*names, len(group), max_before(torch.stack(group)), min_at(torch.stack(group))]
            for names, group in groups.items()
        ]
        return ResultTable(heads, rows)

    @staticmethod
    def _notes(skipped: list[tuple[Variant, str]]) -> list[str]:
        """The configs that were not tested: one line for each family and reason."""
        counts = Counter((variant.value["kind"], reason) for variant, reason in skipped)
        return [f"skipped: {n} of kind {kind}: {reason}" for (kind, reason), n in counts.items()]

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        data = result.figures
        *panels, last = add_subplots(figure, colours, columns=3, rows=2)
        # No change is left blank, so the smallest change must differ from a dark background.
        ramp = LinearSegmentedColormap.from_list("change", colours.sequential[4:])
        for panel, name, changes in zip(panels, data["plotted"], data["changes"], strict=False):
            values = torch.tensor(changes).T
            values = values.masked_fill(values <= ROUNDING, float("nan")).numpy()
            # Output 0 is on top, as in attention diagrams: what a later token reaches lies below it.
            image = panel.imshow(values, cmap=ramp, norm=LogNorm(1e-4, 1))
            panel.grid(False)
            panel.set_title(name.replace("kind=", "").replace(" mixer.", ", "), size=9)
            panel.set(xlabel="changed token t", ylabel="output s")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_locator(MaxNLocator(4, integer=True))
            if panel is panels[-1]:
                bar = figure.colorbar(image, ax=panels)
                label = "change relative to the largest logit (blank: none)"
                bar.set_label(label, color=colours.text, size=9)
                bar.ax.tick_params(which="both", colors=colours.text, labelsize=8)
        numbers, floor = range(len(data["names"])), 1e-17  # where zeros are drawn
        last.axhline(ROUNDING, color=colours.dimmed, ls="--", lw=1)
        series = {"smallest, at t": data["min_at"], "largest, before t": data["max_before"]}
        for label, changes in series.items():
            last.plot(numbers, [x or floor for x in changes], ".", ms=4, label=label)
        last.set(yscale="log", xlabel="model", ylabel="change", ylim=(floor / 10, 10))
        add_legend(last, colours, loc="center", bbox_to_anchor=(0.5, 0.66))
