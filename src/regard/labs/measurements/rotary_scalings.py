"""Rotary scalings, written out from their papers: the expected values of the lab on rotary.

Nothing here is taken from the code under test. A scaling is one function, from a pair to its frequency, in
FREQUENCIES; one that also scales the scores has a second one in SCORE_SCALES.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RotarySetting:
    """What a frequency may depend on."""

    dim: int
    """d, dimension of a head."""
    base: float
    factor: float
    """s, by how much the context is extended."""
    original_length: int
    """Length of the context in training."""
    length: int
    """Length at hand: the number of keys that the query may attend to."""


def unscaled(pair: int, setting: RotarySetting) -> float:
    """omega_i = base^(-2i / d), i = 0 .. d/2 - 1 (Su et al., 2021)"""
    return math.exp(-2 * pair / setting.dim * math.log(setting.base))


def linear(pair: int, setting: RotarySetting) -> float:
    """Position t becomes t / s, so the frequency is omega_i / s (Chen et al., 2023)"""
    return unscaled(pair, setting) / setting.factor


def ntk(pair: int, setting: RotarySetting) -> float:
    """omega_i with the base b s^(d / (d - 2)) (bloc97, 2023)"""
    d = setting.dim
    base = setting.base * setting.factor ** (d / (d - 2))
    return math.exp(-2 * pair / d * math.log(base))


def dynamic_ntk(pair: int, setting: RotarySetting) -> float:
    """omega_i up to the original length, beyond it NTK's with s = 2, 4, 8, .. as the length at hand doubles

    (emozilla, 2023, with the powers of two of Bai et al., 2023)
    """
    if setting.length <= setting.original_length:
        return unscaled(pair, setting)
    doublings = math.ceil(math.log2(setting.length / setting.original_length))
    return ntk(pair, replace(setting, factor=2**doublings))


def yarn(pair: int, setting: RotarySetting) -> float:
    """(1 - g) omega_i / s + g omega_i (Peng et al., 2023, with alpha = 1 and beta = 32)

    g(r) is 0 for r < alpha, 1 for r > beta and (r - alpha) / (beta - alpha) between, where r is the original
    length over the wavelength 2 pi / omega_i.
    """
    omega, alpha, beta = unscaled(pair, setting), 1, 32
    wavelength = 2 * math.pi / omega
    r = setting.original_length / wavelength
    if r < alpha:
        return omega / setting.factor
    if r > beta:
        return omega
    g = (r - alpha) / (beta - alpha)
    return (1 - g) * omega / setting.factor + g * omega


def yarn_score_scale(factor: float) -> float:
    """1 / t, where sqrt(1 / t) = 0.1 ln s + 1 multiplies queries and keys (Peng et al., 2023)"""
    return (0.1 * math.log(factor) + 1) ** 2


FREQUENCIES: dict[str, Callable[[int, RotarySetting], float]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "dynamic-ntk": dynamic_ntk,
}

SCORE_SCALES: dict[str, Callable[[float], float]] = {"yarn": yarn_score_scale}


def derive_frequencies(scaling: str, setting: RotarySetting) -> list[float]:
    """omega_i of every pair."""
    return [FREQUENCIES[scaling](pair, setting) for pair in range(setting.dim // 2)]


def derive_score_scale(scaling: str, factor: float) -> float:
    """The factor of every score: 1, unless the scaling says otherwise."""
    return SCORE_SCALES[scaling](factor) if scaling in SCORE_SCALES else 1.0
