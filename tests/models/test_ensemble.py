"""Ensembles: the mean of the members' log-probabilities, renormalised. All invariants of models hold, too."""

import copy

import pytest
import torch

from regard.errors import UserError
from regard.evaluation.evaluate import cache_bytes_per_token
from regard.models import Ensemble, pack_weights
from regard.models.ensemble import average_log_probs, join_layers
from regard.models.intervene import Ablate, count_heads, intervene
from regard.search import beam, greedy
from tests.models.stepping import assert_close, run_steps

PAIRS = [
    ("gru-2-bidirectional", "transformer-rms"),
    ("decoder-only-llama", "transformer-position-learned"),
    ("decoder-only-state-space", "lstm-1-unidirectional"),
]


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def naive_log_probs(models, example):
    """log P of each token after each target token, from a loop over members and a sum over the vocabulary."""
    total = 0.0
    for model in models:
        logits = model(example.source, example.mask, example.target)
        total = total + (logits - logits.exp().sum(-1, keepdim=True).log())
    unnormalised = (total / len(models)).exp()
    return (unnormalised / unnormalised.sum(-1, keepdim=True)).log()


@pytest.mark.parametrize("names", [*PAIRS, PAIRS[0] + PAIRS[1]], ids="+".join)
def test_log_probabilities_are_averaged_and_renormalised(names, make, example):
    models = [make(name, seed=number) for number, name in enumerate(names)]
    ensemble, expected = Ensemble(models).eval(), naive_log_probs(models, example)
    logits = ensemble(example.source, example.mask, example.target)
    assert_close(logits.log_softmax(-1), expected)
    memory = ensemble.encode(example.source, example.mask)
    stepped, _ = run_steps(ensemble, ensemble.init_state(memory), example.target)
    assert_close(stepped.log_softmax(-1), expected)
    for model in models:
        alone = model(example.source, example.mask, example.target).log_softmax(-1)
        assert not torch.allclose(alone, expected)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_ensemble_of_a_model_with_itself_equals_the_model(family, count, example):
    ensemble = Ensemble([family] * count).eval()
    inputs = (example.source, example.mask, example.target)
    assert_close(ensemble(*inputs).log_softmax(-1), family(*inputs).log_softmax(-1))
    limits = torch.full((len(example.lengths),), 9)
    for search in (greedy, beam):
        found, expected = (
            search(one, one.encode(example.source, example.mask), limits)
            for one in (ensemble, family)
        )
        outputs, references = (
            [row[0] if isinstance(row, list) else row for row in rows] for rows in (found, expected)
        )
        assert [one.ids for one in outputs] == [one.ids for one in references]
        scores = [one.score for one in references]
        assert [one.score for one in outputs] == pytest.approx(scores, abs=1e-6)
    for name, weights in family.attention_weights(*inputs).items():
        joined = ensemble.attention_weights(*inputs)[name]
        assert torch.equal(joined, torch.cat([weights] * count, dim=1))


def test_every_member_has_a_veto():
    confident = torch.tensor([[0.0, -1e4, 0.0]])
    undecided = torch.tensor([[-3.0, 5.0, -3.0]])
    probabilities = average_log_probs([confident, undecided]).softmax(-1)
    torch.testing.assert_close(probabilities, torch.tensor([[0.5, 0.0, 0.5]]))


def test_half_precision_is_averaged_in_float32():
    logits = torch.randn(3, 7).bfloat16()
    average = average_log_probs([logits, logits])
    assert average.dtype == torch.float32
    torch.testing.assert_close(average, logits.float().log_softmax(-1))


def test_the_shortest_maximum_length_counts(make):
    short = make({"kind": "transformer", "position": {"kind": "learned", "max_length": 300}})
    shorter = make({"kind": "decoder-only", "position": {"kind": "learned", "max_length": 550}})
    unlimited = make("gru-1-bidirectional")
    ensemble = Ensemble([unlimited, short, shorter])
    assert [ensemble.max_target_length(n) for n in (1, 280, 301)] == [300, 270, 0]
    assert Ensemble([unlimited, unlimited]).max_target_length(5) is None


def test_caches_add_up(make):
    models = [make(name) for name in ("transformer-rms", "decoder-only-rms", "gru-1-bidirectional")]
    sizes = [cache_bytes_per_token(model) for model in models]
    assert cache_bytes_per_token(Ensemble(models)) == sum(sizes) > 0


def test_what_needs_all_members(make):
    yes, no = make("decoder-only-rms"), make("transformer-rms")
    assert Ensemble([yes, yes]).is_decoder_only
    assert not Ensemble([yes, no]).is_decoder_only
    assert Ensemble([yes, no]).supports_cuda_graphs
    no.supports_cuda_graphs = False
    assert not Ensemble([no, yes]).supports_cuda_graphs


def test_packed_weights_are_those_of_the_members(make, example):
    ensemble = Ensemble([make(name).float() for name in PAIRS[0]]).eval()
    inputs = (example.source, example.mask, example.target)
    expected = ensemble(*inputs)
    packed = pack_weights(copy.deepcopy(ensemble))
    assert_close(packed(*inputs), expected)
    assert all(len(member.backend.packed_weights()) == 1 for member in packed.members)


def test_layers_of_the_second_member_follow_those_of_the_first(make, example):
    models = [make("transformer-rms", seed=seed) for seed in (1, 2)]
    ensemble = Ensemble(models).eval()
    assert count_heads(ensemble)["cross"] == (4, 3)
    inputs = (example.source, example.mask, example.target)
    with intervene(models[1], [Ablate(layer=1, head=2)]):
        expected = ensemble(*inputs)
    with intervene(ensemble, [Ablate(layer=3, head=2)]):
        assert_close(ensemble(*inputs), expected)
    assert not torch.allclose(ensemble(*inputs), expected)


def test_members_may_lack_a_mechanism():
    cross, encoder = torch.rand(2, 3, 5, 7), torch.rand(1, 3, 7, 7)
    joined = join_layers([{"cross": cross}, {"cross": cross, "encoder": encoder}, {}], dim=0)
    assert torch.equal(joined["cross"], torch.cat([cross, cross]))
    assert torch.equal(joined["encoder"], encoder)


def test_members_with_different_numbers_of_heads_have_no_joint_weights(make, example):
    ensemble = Ensemble([make("gru-1-bidirectional"), make("transformer-rms")])
    message = r"heads in cross attention \(1, 3\), .* from Translation\.members, or name a single"
    with pytest.raises(UserError, match=message):
        ensemble.attention_weights(example.source, example.mask, example.target)


def test_decoder_only_and_encoder_decoder_members_have_no_joint_layers(make):
    ensemble = Ensemble([make("decoder-only-rms"), make("transformer-rms")])
    with pytest.raises(UserError, match="interventions and ablations need members of one kind"):
        ensemble.attention_layers()


def test_an_ensemble_cannot_be_trained(make):
    with pytest.raises(UserError, match="cannot be trained: train its members"):
        _ = Ensemble([make("gru-1-bidirectional")]).output_projection
