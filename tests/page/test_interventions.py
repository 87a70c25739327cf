"""Interventions in the engine, against what they must do by their definition."""

import copy

import pytest
import torch

import regard
from regard.api import from_loaded
from regard.errors import UserError
from tests.models.conftest import SOURCE_VOCAB, TARGET_VOCAB
from tests.page.conftest import SUPPORTED, translator
from tests.page.engine import EngineError, to_tensor
from tests.page.test_parity import make_ids

SOURCE, TARGET = make_ids(SOURCE_VOCAB, 7), make_ids(TARGET_VOCAB, 9)
TEXT = "ABCDEFG"
ENCODER_DECODER, DECODER_ONLY, RECURRENT = (
    "transformer-position-rotary",
    "decoder-only-position-rotary",
    "recurrent-additive",
)


@pytest.fixture
def read(engine, load_both):
    """read(model, *interventions): (attention by mechanism, log-probabilities) of one pass."""

    def call(name: str, *interventions: dict):
        load_both(name)
        ids = {"source": SOURCE, "target": TARGET}
        result = engine.call("read", model=name, **ids, interventions=interventions)
        attention = {key: to_tensor(value) for key, value in result["attention"].items()}
        return attention, to_tensor(result["log_probs"])

    return call


def without_key(weights: torch.Tensor, key: int) -> torch.Tensor:
    """Rows of softmax weights as they are if a key is masked."""
    kept = weights.clone()
    kept[..., key] = 0
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", [ENCODER_DECODER, RECURRENT])
def test_mask_renormalises_the_other_keys(read, name):
    before, log_probs = read(name)
    after, changed = read(name, {"what": "mask", "keys": [3]})
    # The queries of the first layer do not depend on cross-attention.
    torch.testing.assert_close(after["cross"][0], without_key(before["cross"][0], 3))
    assert bool((after["cross"][..., 3] == 0).all())
    assert not torch.allclose(changed, log_probs, atol=1e-3)


def test_mask_in_a_decoder_only_model_renormalises_source_and_target(read):
    before, _ = read(DECODER_ONLY)
    after, _ = read(DECODER_ONLY, {"what": "mask", "mechanism": "cross", "keys": [3], "layer": 0})
    both = torch.cat([before["cross"][0], before["decoder"][0]], dim=-1)
    expected = without_key(both, 3)
    length = len(SOURCE)
    torch.testing.assert_close(after["cross"][0], expected[..., :length])
    torch.testing.assert_close(after["decoder"][0], expected[..., length:])
    torch.testing.assert_close(after["encoder"], before["encoder"])


@pytest.mark.parametrize("mechanism", ["cross", "encoder", "decoder"])
@pytest.mark.parametrize("name", [ENCODER_DECODER, DECODER_ONLY])
def test_set_weights_replaces_one_row(read, name, mechanism):
    before, log_probs = read(name)
    place = {"mechanism": mechanism, "layer": 0, "head": 1, "step": 4}
    after, changed = read(name, {"what": "weights", "weights": {"1": 0.25, "3": 2.0}, **place})
    row = after[mechanism][0, 1, 4]
    expected = torch.zeros_like(row)
    expected[1], expected[3] = 0.25, 2.0
    torch.testing.assert_close(row, expected)
    others = after[mechanism][0].clone()
    others[1, 4] = before[mechanism][0, 1, 4]
    torch.testing.assert_close(others, before[mechanism][0])  # the rest of the layer is as it was
    if mechanism != "encoder":
        torch.testing.assert_close(changed[:4], log_probs[:4])  # earlier steps are as they were
        other = "decoder" if mechanism == "cross" else "cross"
        if name == DECODER_ONLY:  # nor does the other part of the row change
            torch.testing.assert_close(after[other][0], before[other][0])
    assert not torch.allclose(changed[4:], log_probs[4:], atol=1e-3)


def test_keys_that_cannot_be_attended_to_get_no_weight(read):
    place = {"mechanism": "decoder", "layer": 0, "head": 0, "step": 2}
    after, _ = read(ENCODER_DECODER, {"what": "weights", "weights": {"1": 0.5, "5": 0.5}, **place})
    assert after["decoder"][0, 0, 2].tolist() == [0, 0.5] + [0] * (len(TARGET) - 2)


@pytest.mark.parametrize("mechanism", ["cross", "encoder", "decoder"])
def test_ablating_a_head_is_zeroing_its_columns_of_the_output_projection(engine, read, mechanism):
    layer, head, depth = 1, 2, 4
    ablated, log_probs = read(
        ENCODER_DECODER, {"what": "ablate", "mechanism": mechanism, "layer": layer, "head": head}
    )
    assert bool((ablated[mechanism][layer, head] == 0).all())
    python = copy.deepcopy(translator(ENCODER_DECODER))
    block = getattr(python.model, "encoder" if mechanism == "encoder" else "decoder")[layer]
    attention = block.cross_attention if mechanism == "cross" else block.mixer.attention
    with torch.no_grad():
        attention.output.weight[:, head * depth : (head + 1) * depth] = 0
    engine.load(python, "zeroed")
    result = engine.call("read", model="zeroed", source=SOURCE, target=TARGET)
    torch.testing.assert_close(log_probs, to_tensor(result["log_probs"]))


def test_ablating_recurrent_attention_is_a_zero_context(engine, read):
    ablated, log_probs = read(RECURRENT, {"what": "ablate"})
    assert bool((ablated["cross"] == 0).all())
    python = copy.deepcopy(translator(RECURRENT))
    with torch.no_grad():
        python.model.output.weight[:, : python.model.decoder.context_dim] = 0
    engine.load(python, "zeroed")
    result = engine.call("read", model="zeroed", source=SOURCE, target=TARGET)
    torch.testing.assert_close(log_probs, to_tensor(result["log_probs"]))


def test_masking_every_key_is_ablation(read):
    masked = read(ENCODER_DECODER, {"what": "mask", "keys": list(range(len(SOURCE)))})
    ablated = read(ENCODER_DECODER, {"what": "ablate"})
    torch.testing.assert_close(masked, ablated)


def test_masks_come_first_then_the_last_intervention_counts(read):
    weights = {"what": "weights", "weights": {"2": 1.0}}
    ablate, mask = {"what": "ablate"}, {"what": "mask", "keys": [2]}
    for interventions, last in (
        ((weights, ablate), ablate),
        ((ablate, weights), weights),
        ((weights, mask), weights),
    ):
        torch.testing.assert_close(
            read(ENCODER_DECODER, *interventions), read(ENCODER_DECODER, last)
        )


SOME = [
    {"what": "mask", "keys": [1, 2], "step": 3},
    {"what": "weights", "weights": {"0": 0.5, "4": 0.5}, "step": 5, "head": 0},
    {"what": "ablate", "layer": 0, "step": 6},
]


def test_stepping_equals_reading_at_once(engine, both):
    """Search and the displayed attention see the same interventions, in every model."""
    name, _ = both
    others = [
        {"what": "mask", "mechanism": mechanism, "keys": [1]}
        for mechanism in ("encoder", "decoder")
        if SUPPORTED[name]["kind"] != "recurrent"
    ]
    has_attention = SUPPORTED[name].get("attention") != "none"
    ids = {"source": SOURCE, "target": TARGET, "interventions": (SOME + others) * has_attention}
    at_once = to_tensor(engine.call("read", model=name, **ids)["log_probs"])[:, 2:]
    stepwise = to_tensor(engine.call("read_stepwise", model=name, **ids))[:, 2:]
    torch.testing.assert_close(stepwise, at_once, atol=1e-6, rtol=1e-6)


def test_no_interventions_change_nothing(engine, both):
    for decoding in ({}, {"beam": 3}):
        request = {"model": both[0], "text": TEXT, "decoding": decoding}
        without, empty = (
            engine.request("translate", **request, **interventions)
            for interventions in ({}, {"interventions": []})
        )
        assert {**without, "milliseconds": 0} == {**empty, "milliseconds": 0}


# --- force ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ENCODER_DECODER, DECODER_ONLY, RECURRENT])
def test_force_replaces_a_token_and_the_model_goes_on(engine, load_both, name):
    load_both(name)
    request = {"model": name, "text": TEXT}
    before = engine.request("translate", **request)["target"]
    place = min(2, len(before) - 1)
    token = "c" if before[place] != "c" else "d"
    force = [{"what": "force", "step": place, "token": token}]
    after = engine.request("translate", **request, interventions=force)
    assert after["target"][: place + 1] == [*before[:place], token]
    # It goes on greedily: every later token is the best after the forced prefix.
    for step in after["steps"][place + 1 :]:
        assert step["token"] == step["best"][0]["token"]
    log_probs = [step["log_prob"] for step in after["steps"]]
    assert sum(log_probs) == pytest.approx(after["score"], abs=1e-4)


@pytest.mark.parametrize(
    "decoding", [{}, {"beam": 4, "nbest": 4}, {"nbest": 3, "sample": {"temperature": 2}}]
)
def test_every_output_has_the_forced_tokens_and_none_ends_before(engine, load_both, decoding):
    load_both(ENCODER_DECODER)
    force = [
        {"what": "force", "step": step, "token": token} for step, token in ((1, "b"), (5, "e"))
    ]
    result = engine.request(
        "translate", model=ENCODER_DECODER, text=TEXT, decoding=decoding, interventions=force
    )
    for output in [result, *result["alternatives"]]:
        assert (output["target"][1], output["target"][5]) == ("b", "e")


def test_forced_end(engine, load_both):
    load_both(RECURRENT)
    force = [{"what": "force", "step": 3, "token": "<end>"}]
    for decoding in ({}, {"beam": 3}):
        request = {"model": RECURRENT, "text": TEXT, "decoding": decoding}
        target = engine.request("translate", **request, interventions=force)["target"]
        assert len(target) == 4
        assert target[3] == "<end>"


def test_a_forced_string_stands_for_all_tokens_that_look_so(engine):
    """In BPE a space before a comma does not show: search takes the more probable of both commas."""
    engine.load(regard.load("de-en"), "de-en", float32=False)
    force = [{"what": "force", "step": 3, "token": ","}]
    request = {"model": "de-en", "text": "Der Hund schläft.", "interventions": force}
    result = engine.request("translate", **request)
    assert result["target"][3] == ","
    commas = [c["log_prob"] for c in result["steps"][3]["best"] if c["token"] == ","]
    assert not commas or result["steps"][3]["log_prob"] == max(commas)


END = {"what": "force", "step": 0, "token": "<end>"}

# What both messages contain, and interventions on a Transformer of two layers and three heads: each alone,
BAD: dict[str, list] = {
    "there is no layer 2: the cross attention of this model has 2, from 0 to 1": [
        {"what": "ablate", "layer": 2}
    ],
    "there is no head 3: the encoder attention of this model has 3": [
        {"what": "ablate", "mechanism": "encoder", "head": 3}
    ],
    "there is no key 8: the source": [{"what": "mask", "keys": [8]}],
    "there is no key 9: the source": [{"what": "weights", "weights": {"9": 1}}],
    "there is no key 2: the decoder's input at step 1 has 2, from 0 to 1": [
        {"what": "mask", "mechanism": "decoder", "step": 1, "keys": [2]}
    ],
    "there is no key 99: the": [{"what": "mask", "mechanism": "decoder", "keys": [99]}],
    "there is no step 999: the": [{"what": "ablate", "step": 999}],
    "there is no step 8: the source": [{"what": "ablate", "mechanism": "encoder", "step": 8}],
    "Mask: keys": [{"what": "mask"}, {"what": "mask", "keys": []}, {"what": "mask", "keys": 3}],
    "SetWeights: weights": [
        {"what": "weights"},
        {"what": "weights", "weights": {}},
        {"what": "weights", "weights": {"0": -1}},
        {"what": "weights", "weights": {"0": 1001}},
        {"what": "weights", "weights": {"0.5": 1}},
    ],
    "Ablate: layer: got 0.5": [{"what": "ablate", "layer": 0.5}],
    "Ablate: step: got -1": [{"what": "ablate", "step": -1}],
    "Ablate: mechanism: got": [{"what": "ablate", "mechanism": "constructor"}],
    "Ablate: kind": [{"what": "ablate", "kind": "mask"}],
    "force, mask, weights": [{"what": "shout"}],
    "Force: token": [{"what": "force", "step": 0}],
    "Force: step": [{"what": "force", "token": "a"}],
}
# or all of them together.
BAD_FORCE: dict[str, list] = {
    '"Z" is not a token of the target vocabulary': [{"what": "force", "step": 0, "token": "Z"}],
    '"<begin>" is not a token': [{"what": "force", "step": 0, "token": "<begin>"}],
    "there is no step 500: the longest output": [{"what": "force", "step": 500, "token": "a"}],
    "two tokens are forced at step 0": [END, END],
    "the output ends at step 0, and a token is forced at step 2": [
        END,
        {"what": "force", "step": 2, "token": "a"},
    ],
}


def errors_of(engine, python, kind: str, interventions: list) -> tuple[str, str]:
    """What Python and the engine say about interventions."""
    target = {"target": "abc"} if kind == "explain" else {}
    given = [(TEXT, "abc")] if kind == "explain" else [TEXT]
    with pytest.raises(UserError) as expected:
        getattr(python, kind)(given, interventions=interventions)
    request = {"model": ENCODER_DECODER, "text": TEXT, "interventions": interventions} | target
    with pytest.raises(EngineError) as error:
        engine.request(kind, **request)
    return str(expected.value), str(error.value)


@pytest.mark.parametrize("message", BAD)
def test_errors_are_those_of_python(engine, load_both, message):
    python = from_loaded(load_both(ENCODER_DECODER))
    for kind in ("translate", "explain"):
        for one in BAD[message]:
            assert all(message in text for text in errors_of(engine, python, kind, [one]))


@pytest.mark.parametrize("message", BAD_FORCE)
def test_errors_of_forced_tokens_are_those_of_python(engine, load_both, message):
    python = from_loaded(load_both(ENCODER_DECODER))
    given = "a given translation has its own tokens, so none can be forced"
    for kind, expected in (("translate", message), ("explain", given)):
        texts = errors_of(engine, python, kind, BAD_FORCE[message])
        assert all(expected in text for text in texts)


def test_weights_have_a_limit(engine, load_both):
    load_both(ENCODER_DECODER)
    request = {"model": ENCODER_DECODER, "text": TEXT}
    one = {"what": "weights", "weights": {"0": 1000}}
    assert engine.request("translate", **request, interventions=[one])["target"]
    with pytest.raises(EngineError, match=r"SetWeights: weights: got .* at most 1000"):
        engine.request("translate", **request, interventions=[one | {"weights": {"0": 1000.5}}])


def test_a_mechanism_that_the_model_lacks(engine, load_both):
    load_both(RECURRENT)
    one = {"what": "ablate", "mechanism": "encoder"}
    with pytest.raises(EngineError, match='this model has no "encoder" attention; it has cross'):
        engine.request("translate", model=RECURRENT, text=TEXT, interventions=[one])
