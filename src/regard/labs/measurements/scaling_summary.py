"""The verdict of `scaling`: operations and memory by formula, and fitted exponents."""

import math

from regard.labs.lab import Check, Findings, ResultTable
from regard.labs.measurements.profiling import PowerLaw

# Expected exponents of length for each layer: (time, memory)
EXPONENTS = {
    "RNN": (1, 1),
    "naive attention": (2, 2),
    "fused attention": (2, 1),
    "state space": (1, 1),
}
TOLERANCE = {"time": 0.35, "memory": 0.1}


# --- by formula -----------------------------------------------------------------------------------


def derived_macs(d_model: int, length: int) -> dict[str, int]:
    """MACs of the layers whose operations PyTorch counts: all but the fused kernel's."""
    d, head_dim, inner, states, kernel = d_model, 4 * d_model, 8 * d_model, 16, 4
    rank = math.ceil(d / 16)
    projections = 2 * d * inner + (rank + 2 * states) * inner + rank * inner + inner * d
    return {
        "RNN": 6 * d**2 * length,
        "naive attention": 4 * d * head_dim * length + 2 * head_dim * length**2,
        "state space": (projections + kernel * inner + states * inner) * length,
    }


def stored_bytes(length: int) -> int:
    """Scores and attention weights, float32: 2 x 4 L^2"""
    return 2 * 4 * length**2


# --- fits -----------------------------------------------------------------------------------------


def fit_times(lengths: list[int], seconds: list[float]) -> PowerLaw:
    """Fit the growth of time over that of a single token, the first of `seconds`."""
    return PowerLaw.fit(lengths, seconds[1:], offset=seconds[0])


FITS = {"time": fit_times, "memory": PowerLaw.fit_with_offset}


def judge_law(
    d_model: int, lengths: list[int], flops: dict[str, list[int]], naive_memory: list[int]
) -> list[Check]:
    """MACs by formula at every length, and the least that naive attention stores."""
    formulas = [derived_macs(d_model, length) for length in lengths]
    macs = (
        Check.worst(
            f"{name}: flops counted by PyTorch minus twice the MACs, at all lengths",
            (count - 2 * by_name[name] for count, by_name in zip(counts, formulas, strict=True)),
            "=",
            0,
        )
        for name, counts in flops.items()
    )
    stored = Check.worst(
        "naive attention: peak memory over that of scores and weights, at all lengths",
        (size / stored_bytes(n) for n, size in zip(lengths, naive_memory, strict=True)),
        ">=",
        1,
    )
    return [*macs, stored]


def summarise(
    lengths: list[int],
    times: dict[str, list[float]],
    memory: dict[str, list[int]],
    law: list[Check],
) -> Findings:
    """The fits, and the checks of their exponents: the effect."""
    measured = {"time": times, "memory": memory}
    fits = {
        quantity: [fit(lengths, values) for values in measured[quantity].values()]
        for quantity, fit in FITS.items()
    }
    effect = [
        Check(
            f"{quantity}, {name}: exponent of length",
            fit.exponent,
            "=",
            exponents[i],
            TOLERANCE[quantity],
            hint="Terms of lower order dominate at these lengths, or another process disturbed the timing.",
        )
        for i, quantity in enumerate(fits)
        for (name, exponents), fit in zip(EXPONENTS.items(), fits[quantity], strict=True)
    ]
    longest = f"at {lengths[-1]} tokens"
    return Findings(
        figures={
            "layers": list(EXPONENTS),
            "lengths": lengths,
            "time": list(times.values()),
            "memory": list(memory.values()),
            **{f"{name}_exponents": [fit.exponent for fit in each] for name, each in fits.items()},
            **{f"{name}_intervals": [fit.interval for fit in each] for name, each in fits.items()},
        },
        law=law,
        effect=effect,
        table=ResultTable(
            ["layer", "time ~", f"ms {longest}", "memory ~", f"MiB {longest}"],
            [
                [
                    name,
                    format_exponent(time_fit),
                    times[name][-1] * 1e3,
                    format_exponent(memory_fit),
                    memory[name][-1] / 2**20,
                ]
                for name, time_fit, memory_fit in zip(EXPONENTS, *fits.values(), strict=True)
            ],
        ),
    )


def format_exponent(fit: PowerLaw) -> str:
    """The exponent with its confidence interval."""
    return f"L^{fit.exponent:.2f} ± {fit.interval:.2f}"
