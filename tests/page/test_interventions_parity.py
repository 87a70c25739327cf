"""Interventions in the engine equal those in Python: `model.translate(texts, interventions=[...])`."""

import inspect

import pytest
import torch

from regard.api import Translator, from_loaded
from tests.models.conftest import select_attention_models
from tests.page.conftest import SUPPORTED
from tests.page.engine import to_tensor

if "interventions" not in inspect.signature(Translator.translate).parameters:
    pytest.skip("translate takes no interventions yet", allow_module_level=True)

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
    (case, name)
    for name in select_attention_models()
    if name in SUPPORTED
    for case in CASES
    if applies(case, name)
]


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_equal_outputs_and_attention(engine, load_both, case, name):
    model = from_loaded(load_both(name))
    for beam in (1, 3):
        request = {"model": name, "text": TEXT, "decoding": {"beam": beam}}
        result = engine.request("translate", **request, interventions=CASES[case])
        [expected] = model.translate([TEXT], beam=beam, interventions=CASES[case])
        assert result["target"] == expected.target
        assert result["score"] == pytest.approx(expected.score, abs=1e-3)
        for mechanism, weights in expected.attention.items():
            ours = to_tensor(result["attention"][mechanism])
            torch.testing.assert_close(ours, weights, atol=1e-4, rtol=1e-4)
