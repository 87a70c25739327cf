"""Interventions through a translator: what each does to a translation, and every mistake."""

import pytest
import torch

from regard.api import from_loaded
from regard.errors import UserError
from regard.interventions import Ablate, Force, Mask, SetWeights, parse
from regard.translation import Sampling
from tests.test_translator import MODELS, TEXTS, assert_same, build_translator

LONG = [text for text in TEXTS if len(text) > 3]
DECODINGS = {"greedy": {}, "beam": {"beam": 3, "nbest": 2}, "sample": {"sample": Sampling()}}


@pytest.fixture(params=MODELS)
def model(request):
    return from_loaded(build_translator(request.param))


@pytest.fixture(params=[name for name in MODELS if name not in ("bottleneck", "state-space")])
def attentive(request):
    return from_loaded(build_translator(request.param))


@pytest.fixture
def transformer():
    return from_loaded(build_translator("transformer"))


@pytest.fixture(params=DECODINGS)
def decoding(request):
    return DECODINGS[request.param]


EXAMPLES = [Mask(step=1, keys=(0, 1)), SetWeights(step=2, weights={1: 1.0}), Ablate(step=3)]


def assert_identical(result, reference):
    assert result == reference  # texts, tokens, scores, alternatives
    for name, weights in reference.attention.items():
        assert torch.equal(result.attention[name], weights)


def test_an_empty_list_changes_no_bit(model, decoding):
    model.model.float()
    for result, reference in zip(
        model.translate(TEXTS, interventions=[], **decoding),
        model.translate(TEXTS, **decoding),
        strict=True,
    ):
        assert_identical(result, reference)
    pairs = [(text, text.upper().removeprefix("<U> ").removeprefix("<L> ")) for text in TEXTS]
    assert model.score(pairs, interventions=[]) == model.score(pairs)
    assert model.explain(pairs, interventions=[]) == model.explain(pairs)


def test_the_model_is_as_before(attentive, decoding):
    expected = attentive.translate(LONG)
    changed = attentive.translate(LONG, interventions=EXAMPLES, **decoding)
    assert [out.score for out in changed] != [out.score for out in expected]
    with pytest.raises(UserError):
        attentive.translate(LONG, interventions=[Mask(keys=(999,))])
    for result, reference in zip(attentive.translate(LONG), expected, strict=True):
        assert_identical(result, reference)


def test_interventions_as_dicts(attentive):
    dicts = [
        {"what": "mask", "step": 1, "keys": [0, 1]},
        {"what": "weights", "step": 2, "weights": {"1": 1.0}},
        {"what": "ablate", "step": 3},
    ]
    assert parse(dicts) == tuple(EXAMPLES)
    expected = attentive.translate(LONG, interventions=EXAMPLES)
    assert attentive.translate(LONG, interventions=dicts) == expected


def test_batches_and_streams_do_not_matter(attentive, decoding):
    options = {"interventions": EXAMPLES, **decoding}
    expected = attentive.translate(LONG, **options)
    for result, reference in zip(
        attentive.translate(LONG, batch_tokens=1, **options), expected, strict=True
    ):
        assert_same(result, reference)
    for result, reference in zip(
        attentive.stream(LONG, attention=True, **options), expected, strict=True
    ):
        assert_same(result, reference)


def test_attention_weights_show_the_intervention(attentive, decoding):
    for out in attentive.translate(LONG, interventions=EXAMPLES, **decoding):
        for one in (out, *out.alternatives):
            weights = one.attention["cross"]
            assert (weights[:, :, 1:2, :2] == 0).all()
            expected = torch.zeros_like(weights[:, :, 2:3])
            expected[..., 1] = 1
            assert torch.equal(weights[:, :, 2:3], expected)
            assert (weights[:, :, 3:4] == 0).all()


def test_an_output_has_its_score_when_it_is_explained(attentive):
    outputs = attentive.translate(LONG, interventions=EXAMPLES)
    complete = [out for out in outputs if out.target[-1] == "<end>" and len(out.target) > 3]
    pairs = [(text, out.text) for text, out in zip(LONG, outputs, strict=True) if out in complete]
    explained = attentive.explain(pairs, interventions=EXAMPLES)
    scored = attentive.score(pairs, interventions=EXAMPLES, attention=True)
    for out, given, pair in zip(complete, explained, scored, strict=True):
        assert_same(given, out)
        assert pair.score == pytest.approx(out.score, abs=1e-5)
        torch.testing.assert_close(pair.attention["cross"], out.attention["cross"])


def test_forced_tokens_are_in_every_output(model, decoding):
    free = model.translate(TEXTS, **decoding)
    token = model.tokenizers.target.vocab[5]
    outputs = model.translate(TEXTS, interventions=[Force(step=1, token=token)], **decoding)
    for out in outputs:
        for one in (out, *out.alternatives):
            assert one.target[1] == token
    for text, out in zip(TEXTS, free, strict=True):
        own = [Force(step=step, token=token) for step, token in enumerate(out.target)]
        index = TEXTS.index(text)
        texts = (
            TEXTS[: index + 1] if "sample" in decoding else [text]
        )  # a sample depends on its number
        limits = [model.max_output_length(len(o.source)) for o in free[: index + 1]]
        if min(limits) >= len(own):
            assert_same(model.translate(texts, interventions=own, **decoding)[-1], out)


def test_forcing_and_masking_together(transformer):
    [out] = transformer.translate(
        ["bead"], interventions=[Force(step=1, token="A"), Mask(step=1, keys=(2,))]
    )
    assert out.target[1] == "A"
    assert (out.attention["cross"][:, :, 1, 2] == 0).all()


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = {
    "layer": (Ablate(layer=9), r"Ablate: there is no layer 9: .*cross.* has \d, from 0 to \d"),
    "head": (Ablate(mechanism="encoder", head=3), "no head 3: .*encoder.* has 3, from 0 to 2"),
    "key": (Mask(keys=(2, 5)), "Mask: there is no key 5: the source of text 1 has 5, from 0 to 4"),
    "weights": (SetWeights(weights={7: 1.0}), "no key 7: the source of text 1"),
    "encoder key": (Mask(mechanism="encoder", keys=(5,)), "no key 5: the source of text 1"),
    "encoder step": (Ablate(mechanism="encoder", step=5), "no step 5: the source of text 1"),
    "step": (Ablate(step=10), "no step 10: the longest output for text 1 has 10, from 0 to 9"),
    "decoder key": (
        Mask(mechanism="decoder", step=2, keys=(3,)),
        "no key 3: the decoder's input at step 2 has 3, from 0 to 2",
    ),
    "any decoder key": (Mask(mechanism="decoder", keys=(10,)), "no key 10: the longest output"),
    "force step": (Force(step=10, token="A"), "Force: there is no step 10: the longest output"),
    "token": (
        Force(step=1, token="<edn>"),
        '"<edn>" is not a token of the target vocabulary, which has .* Did you mean "<end>"',
    ),
    "padding": (Force(step=1, token="<pad>"), "not a token of the target vocabulary"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_places_outside_the_model_or_the_text(transformer, name):
    one, message = MISTAKES[name]
    with pytest.raises(UserError, match=message):
        transformer.translate(["bead"], interventions=[one])
    with pytest.raises(UserError, match=message):
        list(transformer.stream(["bead"], interventions=[one]))


def test_forced_tokens_that_contradict_each_other(transformer):
    two = [Force(step=1, token="A"), Force(step=1, token="B")]
    with pytest.raises(UserError, match="two tokens are forced at step 1"):
        transformer.translate(["bead"], interventions=two)
    after = [Force(step=3, token="A"), Force(step=1, token="<end>")]
    with pytest.raises(UserError, match="output ends at step 1, and a token is forced at step 3"):
        transformer.translate(["bead"], interventions=after)


def test_given_translations(transformer):
    pairs = [("bead", "BEAD"), ("bad", "BAD")]
    for method in (transformer.explain, transformer.score):
        with pytest.raises(UserError, match="a given translation has its own tokens"):
            method(pairs, interventions=[Force(step=1, token="A")])
        with pytest.raises(UserError, match="no step 4: the target of text 2 has 4, from 0 to 3"):
            method(pairs, interventions=[Ablate(step=4)])
        with pytest.raises(UserError, match="no key 4: the source of text 2"):
            method(pairs, interventions=[Mask(keys=(4,))])
        with pytest.raises(UserError, match="no layer 9"):
            method(pairs, interventions=[Ablate(layer=9)])


@pytest.mark.parametrize(
    ("name", "has"), [("gru", "it has cross"), ("bottleneck", "it has no attention at all")]
)
def test_a_mechanism_that_the_model_lacks(name, has):
    model = from_loaded(build_translator(name))
    with pytest.raises(UserError, match=f'this model has no "encoder" attention; {has}'):
        model.translate(["bead"], interventions=[Ablate(mechanism="encoder")])


def test_a_text_that_is_too_short_is_named(transformer):
    with pytest.raises(UserError, match="no key 3: the source of text 2 has 2, from 0 to 1"):
        transformer.translate(["bead", "a"], interventions=[Mask(keys=(3,))])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mask(keys=(-1,)), "Mask: keys.0: got -1; it should be greater than or equal to 0"),
        (lambda: Mask(keys=()), "Mask: keys: empty"),
        (lambda: Mask(kes=[1]), 'Mask: kes: unknown key. Did you mean "keys"'),
        (lambda: Mask(keys=(1,), mechanism="crss"), 'got "crss"; .* Did you mean "cross"'),
        (lambda: SetWeights(weights={1: -2.0}), r"weights.1: got -2.0; it should be greater"),
        (lambda: Force(token="a"), "Force: step: required, and missing"),
        (lambda: parse([{"what": "maks"}]), "what: got 'maks'; .* Did you mean \"mask\""),
        (lambda: parse([3]), "an intervention is Force, Mask, SetWeights, Ablate, or a dict"),
        (lambda: parse(Mask(keys=(1,))), r"interventions are a list, as in \[Mask"),
        (lambda: parse({"what": "mask"}), "interventions are a list"),
    ],
)
def test_wrong_values(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_weights_that_would_make_the_output_infinite_are_an_error():
    with pytest.raises(UserError, match=r"SetWeights: weights.*1e\+?300"):
        SetWeights(weights={0: 1e300})
    assert SetWeights(weights={0: 1000}).weights == {0: 1000.0}
