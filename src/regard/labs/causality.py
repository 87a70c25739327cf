"""Causality: what a decoder says at a position does not depend on what comes later."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import get_args

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
from regard.labs.config_variants import Variant, kind_pairs, table_variants
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.plotting import add_legend, add_subplots
from regard.models import Model, build

ROUNDING = 1e-9  # of float64, through a few layers
NOTICED = 1e-4  # what a changed token must change, as a share of the largest logit
VOCAB, SOURCE = 13, 5
Changes = Float[Tensor, "changed output"]


class CausalityParameters(Parameters):
    length: int = Field(7, ge=2, le=48)
    """T, how many target tokens there are; each is changed in turn."""


def every() -> Iterator[Variant]:
    """Every choice that a config leaves, one at a time, and any two kinds together."""
    for member in get_args(Config.model_fields["model"].annotation):
        family = get_args(member)[0]
        yield from (*table_variants(family), *kind_pairs(family))


def made(choice: Variant) -> Model:
    """A small model; choices that do not go together are refused, as they are everywhere."""
    table = Config(model=choice.value).model
    return build(table, VOCAB, VOCAB, joint=False).double().eval()


def reason(error: ValidationError | UserError) -> str:
    """Why a choice was refused: for all positions alike, say, and without what one should do instead."""
    first = error.errors()[0] if isinstance(error, ValidationError) else None
    if first and first["type"] == "missing":
        return f"its {first['loc'][-1]} has no default, so there is none to build"
    told = str(first.get("ctx", {}).get("error", first["msg"]) if first else error)
    return re.sub(' "[^"]*"', "", told.partition(": ")[0])


@torch.no_grad()
def changes(model: Model, length: int, generator: Generator) -> Changes:
    """How much the logits at s change when token t does, as a share of the largest: row t, column s."""
    source = torch.randint(1, VOCAB, (1, SOURCE), generator=generator).expand(length + 1, -1)
    target = torch.randint(1, VOCAB, (1, length), generator=generator).repeat(length + 1, 1)
    each = torch.arange(length)
    target[each, each] = target[each, each] % (VOCAB - 1) + 1  # the last row stays as it was
    logits = model(source, torch.ones_like(source, dtype=torch.bool), target)
    return (logits[:-1] - logits[-1]).abs().amax(-1) / logits[-1].abs().max()


def before(found: Changes) -> float:
    """The largest change at an output that stands before the changed token."""
    return float(found.tril(-1).max())


def at(found: Changes) -> float:
    """The smallest change at the changed token itself: it is read, after all."""
    return float(found.diagonal().min())


# --- the exercise ---------------------------------------------------------------------------------


def mask(new: int, read: int) -> Tensor:
    """True where j <= read + i"""
    return torch.arange(read + new) <= read + torch.arange(new)[:, None]


@torch.no_grad()
def reaches(allowed: Tensor, generator: Generator) -> Tensor:
    """Which token reaches which output of one attention: token j changed, output i changes. [j i]"""
    new, length = allowed.shape
    torch.manual_seed(0)
    heads = MultiHead(5, 2, 3, SCORES["scaled-dot"](3, 3)).double()
    x = torch.randn(1, length, 5, dtype=torch.float64, generator=generator).repeat(length + 1, 1, 1)
    each = torch.arange(length)
    x[each, each] = -x[each, each]
    place = each.expand(length + 1, -1)
    held, seen = heads.keys_values(x, place), allowed.expand(length + 1, -1, -1)
    asking = x[-1:, length - new :].expand(length + 1, -1, -1)  # only keys and values are changed
    found = heads(asking, *held, seen, place[:, length - new :], place)[0]
    return (found[:-1] - found[-1]).abs().amax(-1) > NOTICED


def grade(answer: Callable[..., Tensor]) -> Iterator[Check]:
    """Any mask will do that lets every token see all that is read up to itself and nothing later."""
    generator = torch.Generator().manual_seed(0)
    for new, read in ((1, 0), (5, 0), (1, 6), (3, 4)):
        given = f"new = {new}, read = {read}"
        found, lawful = reaches(answer(new, read), generator), mask(new, read).T
        for name, wrong, why in (
            ("later tokens that reach an output", found & ~lawful, "reaches"),
            ("tokens read that do not reach an output", ~found & lawful, "does not reach"),
        ):
            pairs = [f"token {j} {why} new token {i}, at {read + i}" for j, i in wrong.nonzero()]
            first = f" Here {pairs[0]}." if pairs else ""
            yield Check(
                f"{name} ({given})",
                len(pairs),
                "=",
                0,
                hint="New token i stands at read + i and may look at 0 .. read + i, itself "
                f"included.{first}",
            )


class Causality(Lab):
    """Changing token t changes no output before t."""

    name = "causality"
    claim = "Changing token t changes no output before t, in any causal model"
    derivation = """
A decoder factorises P(y) = prod_s P(y_s | y_<s), so its output at s may depend on tokens 1 .. s alone.

attention     a_s = sum_j alpha_sj v_j with e_sj = minus infinity, hence alpha_sj = 0, for j > s
recurrence    d_s = cell(x_s, d_(s-1)): what has not been read cannot be in the state
state space   h_s = exp(Delta_s A) h_(s-1) + Delta_s B_s u_s, behind a convolution that only looks back

Norms, feed-forward networks and the output map act at each position alone, so stacking keeps it. We
change each token t of a target in turn and look at every output s, in a small model for every choice
that a config leaves: 0 for s < t, and something at s = t, because a model that reads nothing would
keep the law as well.
"""
    parameters = CausalityParameters
    exercise = Exercise(
        starter='''
def mask(new, read):
    """Which tokens the new ones may look at, when a decoder goes on behind its cache.

    `read` tokens have been read before, and `new` more are read now, all at once. Tokens count from 0: the
    new ones stand at read .. read + new - 1. Return a tensor of True and False, [new, read + new], True
    where the new token of this row may look at the token of this column.
    """
    raise NotImplementedError
''',
        solution=mask,
        grade=grade,
        background="""
A decoder's output at position s may depend on the tokens 0 .. s alone, because those after it are not known
when it has to answer. A cache keeps the keys and values of what has been read, so new queries meet more
keys than there are queries: the mask is not square.
""",
    )

    def measure(self, params: CausalityParameters, generator: Generator) -> Findings:
        found: list[tuple[Variant, Changes]] = []
        refused: list[tuple[Variant, str]] = []
        for choice in every():
            try:
                model = made(choice)
            except (ValidationError, UserError) as error:
                refused.append((choice, reason(error)))
            else:
                found.append((choice, changes(model, params.length, generator)))
        families = list(dict.fromkeys(choice.value["kind"] for choice, _ in found))
        checks = [c for kind in families for c in self._checks(kind, found)]
        shown = [
            (choice, change)
            for choice, change in found
            if set(choice.settings) <= {"kind", "mixer.kind"}
        ]
        return Findings(
            figures={
                "models": len(found),
                "names": [choice.name for choice, _ in found],
                "families": [choice.value["kind"] for choice, _ in found],
                "before": [before(change) for _, change in found],
                "at": [at(change) for _, change in found],
                "left_out": [choice.name for choice, _ in refused],
                "left_out_because": [why for _, why in refused],
                "shown": [choice.name for choice, _ in shown],
                "changes": [change.tolist() for _, change in shown],
            },
            checks=checks,
            table=self._table(found),
            notes=self._notes(refused),
        )

    @staticmethod
    def _checks(kind: str, found: list[tuple[Variant, Changes]]) -> list[Check]:
        """Of one family: the worst leak, and the model that notices least."""
        own = [(choice.name, change) for choice, change in found if choice.value["kind"] == kind]
        leak = max(own, key=lambda pair: before(pair[1]))
        dull = min(own, key=lambda pair: at(pair[1]))
        return [
            Check(
                f"largest change before t, {len(own)} models of kind {kind}",
                before(leak[1]),
                "<=",
                0,
                ROUNDING,
                hint=f"The future leaks in: {leak[0]}",
            ),
            Check(
                f"smallest change at t, {len(own)} models of kind {kind}",
                at(dull[1]),
                ">=",
                NOTICED,
                hint=f"A token is read and nothing comes of it: {dull[0]}",
            ),
        ]

    @staticmethod
    def _table(found: list[tuple[Variant, Changes]]) -> ResultTable:
        """A row for each field that was varied."""
        groups: dict[tuple[str, str], list[Changes]] = {}
        for choice, change in found:
            varied = dict.fromkeys(key.split(".")[0] for key in choice.settings if key != "kind")
            label = " and ".join(varied) or "(the plainest)"
            groups.setdefault((choice.value["kind"], label), []).append(change)
        heads = ["model", "varied", "models", "largest change before t", "smallest change at t"]
        rows = [
            [*names, len(group), max(map(before, group)), min(map(at, group))]
            for names, group in groups.items()
        ]
        return ResultTable(heads, rows)

    @staticmethod
    def _notes(refused: list[tuple[Variant, str]]) -> list[str]:
        """What was not tried: a line for each reason that a family has."""
        counts = Counter((choice.value["kind"], why) for choice, why in refused)
        return [f"left out: {many} of kind {kind}: {why}" for (kind, why), many in counts.items()]

    def draw(self, result: Result, figure: Figure, colours: Theme) -> None:
        found = result.figures
        *panels, last = add_subplots(figure, colours, columns=3, rows=2)
        # Blank is for nothing at all: the smallest change must not look like dark paper.
        ramp = LinearSegmentedColormap.from_list("change", colours.sequential[4:])
        for panel, name, change in zip(panels, found["shown"], found["changes"], strict=False):
            seen = torch.tensor(change).T
            seen = seen.masked_fill(seen <= ROUNDING, float("nan")).numpy()
            image = panel.imshow(seen, cmap=ramp, norm=LogNorm(1e-4, 1), origin="lower")
            panel.grid(False)
            panel.set_title(name.replace("kind=", "").replace(" mixer.", ", "), size=9)
            panel.set(xlabel="changed token t", ylabel="output s")
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_locator(MaxNLocator(4, integer=True))
            if panel is panels[-1]:
                bar = figure.colorbar(image, ax=panels)
                bar.set_label(
                    "change, as a share of the largest logit (blank: none)",
                    color=colours.text,
                    size=9,
                )
                bar.ax.tick_params(colors=colours.text, labelsize=8)
        numbers, floor = range(len(found["names"])), 1e-17  # where 0 is drawn
        last.axhline(ROUNDING, color=colours.dimmed, ls="--", lw=1)
        last.plot(numbers, found["at"], ".", ms=4, label="smallest, at t")
        last.plot(
            numbers, [max(x, floor) for x in found["before"]], ".", ms=4, label="largest, before t"
        )
        last.set(yscale="log", xlabel="every model", ylabel="change", ylim=(floor / 10, 10))
        add_legend(last, colours, loc="center", bbox_to_anchor=(0.5, 0.66))
