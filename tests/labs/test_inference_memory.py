"""Inference memory: every byte is accounted for; caches that keep too much or too little are detected."""

import math
from dataclasses import replace

import pytest
import torch

from regard import UserError
from regard.attention import MultiHead
from regard.attention.latent import Latent
from regard.labs.inference_memory import SHARED, cache_bytes
from regard.labs.measurements.state_bytes import (
    Sizes,
    allocated_bytes,
    build_model,
    generate,
    make_families,
    state_bytes,
)
from regard.models.interface import Record
from regard.models.kv_cache import KVCache
from regard.models.mixers import CausalStateSpace, SelfAttention

SIZES = Sizes(layers=3, heads=6, groups=2, head_dim=4, latent_dim=7, window=5, source=11)


def failed(checks):
    return [check.name for check in checks if not check.passed]


def test_formulas():
    derived = {name: family.bytes_after(13) // 4 for name, family in make_families(SIZES).items()}
    d, tokens = 24, 11 + 13
    assert derived == {
        "gru": 3 * d + 11 * d,
        "lstm": 2 * 3 * d + 11 * d,
        "gru + attention": 3 * d + d + 11 * (8 + d),
        "state space": 3 * 2 * d * (8 + 3),
        "window": 3 * 2 * 6 * 4 * (5 - 1),
        "multi-head": 3 * 2 * 6 * 4 * tokens,
        "grouped-query": 3 * 2 * 2 * 4 * tokens,
        "multi-query": 3 * 2 * 4 * tokens,
        "latent": 3 * (7 + 4) * tokens,
        "encoder-decoder": 3 * 2 * 6 * 4 * tokens,
    }


@pytest.mark.parametrize(
    ("changed", "present"),
    [
        ({"layers": 1, "heads": 6, "groups": 3, "source": 1}, True),
        ({"groups": 4}, False),
        ({"latent_dim": 60}, False),
        ({"tokens": 4, "source": 2, "window": 9}, False),  # the window is not full
    ],
)
def test_law_holds_at_other_sizes(lab, changed, present):
    result = lab.run(**changed)
    assert result.law_holds, failed(result.law)
    assert result.effect_is_present is present


def test_sharing_factors(lab):
    result = lab.run(heads=6, groups=3, latent_dim=12)
    assert dict(zip(SHARED, result.figures["factors"], strict=True)) == {
        "grouped-query": 2,
        "multi-query": 6,
        "latent": 2 * 6 * 8 / (12 + 4),
    }
    assert "O(L g d_h (S + n))" in result.figures["orders"]


def test_a_tensor_that_occurs_twice_counts_once():
    keys = torch.zeros(1, 2, 3, 5)
    assert state_bytes(KVCache(keys, keys, 3)) == 2 * 3 * 5 * 4
    assert state_bytes(KVCache(keys, keys.clone(), 2)) == 2 * (2 * 2 * 5 * 4)
    assert allocated_bytes(KVCache(keys, keys.clone(), 2)) == 2 * (2 * 3 * 5 * 4)
    assert allocated_bytes(KVCache(keys, keys[:, :, 1:], 1)) == 2 * 3 * 5 * 4


# --- deliberate breaks ----------------------------------------------------------------------------


def test_unshared_keys_are_detected(lab, monkeypatch):
    make = MultiHead.__init__

    def unshared(self, *sizes, kv_heads=None, **options):
        make(self, *sizes, **options)

    monkeypatch.setattr(MultiHead, "__init__", unshared)
    result = lab.run()
    assert [name.split(":")[0] for name in failed(result.law)] == ["grouped-query", "multi-query"]
    assert not result.effect_is_present


def test_latent_cache_of_full_keys_is_detected(lab, monkeypatch):
    keys_values = Latent.keys_values

    def expanded(self, x, position_ids):
        c, rotary_key = keys_values(self, x, position_ids)
        return torch.cat([c, 0 * c], dim=1), rotary_key.expand(-1, 2, -1, -1)

    monkeypatch.setattr(Latent, "keys_values", expanded)
    monkeypatch.setattr(Latent, "forward", lambda self, x, *args, **kwargs: (x, None))
    names = failed(lab.run().law)
    assert names == ["latent: bytes minus formula, after 0 .. 48 tokens"]


def test_state_space_in_double_precision_is_detected(lab, monkeypatch):
    forward = CausalStateSpace.forward

    def widen(self, x, inputs, cache, need_weights):
        result = forward(self, x, inputs, cache, need_weights)
        cache.hidden = cache.hidden.double()
        return result

    monkeypatch.setattr(CausalStateSpace, "forward", widen)
    assert failed(lab.run().law) == ["state space: bytes minus formula, after 0 .. 48 tokens"]


WINDOW_BYTES = "window: bytes minus formula, after 0 .. 48 tokens"
LOGITS = "change of the logits when all tokens are read at once, largest"


def test_cache_without_eviction_is_detected(lab, monkeypatch):
    monkeypatch.setattr(SelfAttention, "window", None)
    result = lab.run()
    assert failed(result.law) == [WINDOW_BYTES]
    assert not result.effect_is_present


@pytest.mark.parametrize("change", [-1, 1])
def test_eviction_of_one_key_more_or_less_is_detected(lab, change, monkeypatch):
    window = SelfAttention.window.fget

    def changed(self):
        return None if window(self) is None else window(self) + change

    monkeypatch.setattr(SelfAttention, "window", property(changed))
    assert failed(lab.run().law) == [WINDOW_BYTES] + [LOGITS] * (change < 0)


def test_double_count_by_the_library_is_detected(lab, monkeypatch):
    def cache_bytes(self):
        sizes = []
        self._map(lambda x: sizes.append(x.nbytes * x.is_floating_point()) or x)
        return sum(sizes)

    monkeypatch.setattr(Record, "cache_bytes", cache_bytes)
    assert failed(lab.run().law) == ["bytes by the library's cache_bytes(), minus ours"]


def test_cache_without_growth_has_no_factor(lab, monkeypatch):
    """Not a division by zero, and not a pass."""
    monkeypatch.setattr("regard.labs.inference_memory.generate", never_grows)
    result = lab.run()
    assert all(math.isnan(factor) for factor in result.figures["factors"])
    assert not result.effect_is_present


def never_grows(model, source, tokens, generator):
    made = generate(model, source, tokens, generator)
    return replace(made, used=[made.used[0]] * (tokens + 1))


def test_exercise_measures_the_library(monkeypatch):
    sizes = Sizes(2, 4, 2, 6, latent_dim=1, window=1, source=3)
    model = build_model(make_families(sizes)["grouped-query"])
    measured = generate(model, 3, 4, torch.Generator().manual_seed(0))
    assert measured.used[-1] == cache_bytes(7, 2, 4, 2, 6) == 2 * 2 * 2 * 6 * 7 * 4


def test_heads_not_divisible_by_groups(lab):
    with pytest.raises(UserError, match="6 heads cannot be divided into 4 key/value groups"):
        lab.run(heads=6, groups=4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tokens, layers, heads, groups, dim: 2 * layers * heads * dim * tokens * 4,
        lambda tokens, layers, heads, groups, dim: 2 * layers * groups * dim * tokens,
        lambda tokens, layers, heads, groups, dim: layers * groups * dim * tokens * 4,
        lambda tokens, layers, heads, groups, dim: 2 * groups * dim * tokens * 4,
        lambda tokens, layers, heads, groups, dim: float("nan"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert messages
    assert "cache_bytes(tokens=" in messages[0]
    assert "key and a value" in messages[0]
