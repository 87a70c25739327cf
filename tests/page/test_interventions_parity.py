"""Interventions in the engine equal those in Python: `model.translate(texts, interventions=[...])`."""

from itertools import product

import pytest
import torch

from regard.api import from_loaded
from regard.interventions import KINDS, MECHANISMS
from tests.models.conftest import select_attention_models
from tests.page.conftest import SUPPORTED
from tests.page.engine import to_tensor

TEXT = "ABCDEFG"
CASES = {
    "mask": [{"what": "mask", "keys": [1, 4]}],
    "mask-step": [{"what": "mask", "keys": [0], "step": 2, "head": 0}],
    "weights": [{"what": "weights", "weights": {0: 0.5, 3: 1.5}, "layer": 0, "step": 1}],
    "ablate": [{"what": "ablate", "layer": 0}],
    "force": [
        {"what": "force", "step": 1, "token": "c"},
        {"what": "force", "step": 4, "token": "a"},
    ],
    "encoder": [{"what": "mask", "mechanism": "encoder", "keys": [2]}],
    "decoder": [{"what": "weights", "mechanism": "decoder", "weights": {0: 1.0}, "head": 0}],
    "order": [
        {"what": "ablate", "step": 1},
        {"what": "mask", "keys": [2]},
        {"what": "weights", "weights": {1: 1.0}, "step": 1},
    ],
}


def applies(case: str, name: str) -> bool:
    """Does the model have the attention that a case changes? Recurrent ones have cross-attention only."""
    mechanisms = {one.get("mechanism", "cross") for one in CASES[case] if one["what"] != "force"}
    return SUPPORTED[name]["kind"] != "recurrent" or mechanisms <= {"cross"}


PAIRS = [
    (case, name, (1, 3)[(row // 2 + column // 2) % 2])
    for row, name in enumerate(name for name in select_attention_models() if name in SUPPORTED)
    for column, case in enumerate(case for case in CASES if applies(case, name))
    if (row + column) % 2
    == 0  # every model with half of the cases, every case with half of the models
]


def test_every_kind_is_compared_with_every_family_and_both_beam_sizes():
    """So none is forgotten; and a model of each family has each kind on each mechanism of a case."""
    compared = {
        (one["what"], SUPPORTED[name]["kind"], beam)
        for case, name, beam in PAIRS
        for one in CASES[case]
    }
    families = {SUPPORTED[name]["kind"] for _, name, _ in PAIRS}
    assert compared == set(product(KINDS, families, (1, 3)))
    models = {name for name in select_attention_models() if name in SUPPORTED}
    assert {name for _, name, _ in PAIRS} == models
    mechanisms = {one.get("mechanism", "cross") for case in CASES.values() for one in case}
    assert mechanisms == set(MECHANISMS)


@pytest.mark.parametrize(("case", "name", "beam"), PAIRS)
def test_equal_outputs_and_attention(engine, load_both, case, name, beam):
    model = from_loaded(load_both(name))
    request = {"model": name, "text": TEXT, "decoding": {"beam": beam}}
    result = engine.request("translate", **request, interventions=CASES[case])
    [expected] = model.translate([TEXT], beam=beam, interventions=CASES[case])
    assert result["target"] == expected.target
    assert result["score"] == pytest.approx(expected.score, abs=1e-3)
    for mechanism, weights in expected.attention.items():
        ours = to_tensor(result["attention"][mechanism])
        torch.testing.assert_close(ours, weights, atol=1e-4, rtol=1e-4)
