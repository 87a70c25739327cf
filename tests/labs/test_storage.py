"""Storage: leaks, changed weights and unshifted inputs are detected; shares and probes are correct."""

import random
from types import SimpleNamespace

import pytest
import torch

from regard.labs.measurements.case_task import (
    SINGLE_HEAD,
    CaseParameters,
    make_config,
    sample_pairs,
)
from regard.labs.measurements.storage_metrics import (
    ProbeResult,
    Sentences,
    Shares,
    activation_changes,
    compare,
    count_unshifted,
    input_gradients,
    letter_mask,
    next_row,
    part_gradients,
    probe,
)
from regard.labs.measurements.storage_summary import EXCHANGES, judge_effect
from regard.labs.measurements.training import init_model
from regard.models.recurrent import Recurrent
from regard.models.recurrent_decoder import Decoder
from regard.text.batch import Batch, EncodedPairs
from regard.text.tokenizer import TokenizerPair

PAIRS = [("<U> abC", "ABC"), ("<L> bBa", "bba"), ("<L> Cab", "cab"), ("<U> ccA", "CCA")]


def failed(checks):
    return [check.name.split(",")[0] for check in checks if not check.passed]


@pytest.fixture
def untrained(lab, small):
    return small(lab) | lab.absent


@pytest.fixture
def sentences():
    config = make_config(CaseParameters(hidden_dim=7), 3, attention=SINGLE_HEAD)
    tokenizers = TokenizerPair.train(config.tokenizer, PAIRS, ("<U>", "<L>"))
    return Sentences.encode(PAIRS, init_model(config, tokenizers), tokenizers)


def make_batch(sentences):
    data = EncodedPairs.from_pairs(PAIRS, sentences.tokenizers)
    return data.batch(range(len(PAIRS)))


# --- deliberate breaks ----------------------------------------------------------------------------


def test_weights_that_change_at_inference_are_detected(lab, untrained, monkeypatch):
    step = Recurrent.step

    def learn(self, tokens, state):
        self.output.bias.data += 1e-7
        return step(self, tokens, state)

    monkeypatch.setattr(Recurrent, "step", learn)
    assert "weights changed by inference" in failed(lab.run(**untrained).law)


def test_third_path_to_the_decoder_is_detected(lab, untrained, monkeypatch):
    """The row's index reaches the decoder: not part of what is exchanged."""
    init_state = Decoder.init_state

    def leak(self, initial, values, mask):
        return init_state(self, initial + torch.arange(len(initial))[:, None, None], values, mask)

    monkeypatch.setattr(Decoder, "init_state", leak)
    names = failed(lab.run(**untrained).law)
    assert "outputs that are not the other sentence's" in names


def test_decoder_that_sees_its_label_is_detected(lab, untrained, monkeypatch):
    forward = Decoder.forward
    monkeypatch.setattr(
        Decoder, "forward", lambda self, x, state: forward(self, x + x.mean(1, keepdim=True), state)
    )
    names = failed(lab.run(**untrained).law)
    assert "gradient of a loss at the inputs after it" in names
    assert "log-probability of an output with itself as input" in names


def test_inputs_that_are_not_shifted_are_detected(lab, untrained, monkeypatch):
    batch = EncodedPairs.batch

    def unshifted(self, rows):
        given = batch(self, rows)
        return Batch(given.source, given.source_mask, given.labels, given.labels, given.target_mask)

    monkeypatch.setattr("regard.labs.measurements.storage_summary.EncodedPairs.batch", unshifted)
    names = failed(lab.run(**untrained).law)
    assert "inputs in training that are not the label before" in names


def test_encoder_that_reads_backward_is_detected(sentences, monkeypatch):
    batch = make_batch(sentences)
    assert activation_changes(sentences.model, batch, 2)["encoder states before it"] == 0
    encoder = type(sentences.model.encoder)
    forward = encoder.forward

    def backward(self, source, mask):
        states, last = forward(self, source.flip(1), mask)
        return states.flip(1), last

    monkeypatch.setattr(encoder, "forward", backward)
    assert activation_changes(sentences.model, batch, 2)["encoder states before it"] > 1e-3


# --- shares ---------------------------------------------------------------------------------------


def test_donors():
    symbols = ["<U>", "<L>", "<L>", "<U>"]
    assert [next_row(symbols, i, same=True) for i in range(4)] == [3, 2, 1, 0]
    assert [next_row(symbols, i, same=False) for i in range(4)] == [1, 3, 3, 1]
    assert next_row(["<U>"], 0, same=False) == 0


def test_shares_of_letters_and_cases(sentences):
    ids = sentences.tokenizers.target.piece_to_id
    outputs = [[ids[letter] for letter in target] for _, target in PAIRS]
    shares = compare(sentences, outputs, "same case")
    assert (shares.own_letters, shares.own_case, shares.other_case) == (1, 1, 0)
    assert (
        shares.donor_letters == 0
    )  # ABC and CCA have no letter at the same position, nor bba and cab
    shares = compare(sentences, [outputs[row] for row in (3, 2, 1, 0)], "same case")
    assert (shares.own_letters, shares.donor_letters, shares.own_case) == (0, 1, 1)
    outputs = [[ids["a"]], [], [ids["A"], ids["C"]], [ids["C"], ids["C"], ids["A"]]]
    shares = compare(sentences, outputs, "same case")
    assert shares.own_letters == pytest.approx((1 + 0 + 0 + 3) / 12)
    assert shares.own_case == pytest.approx(3 / 12)
    assert shares.other_case == pytest.approx(3 / 12)


def test_everything_from_the_donor_is_the_donors_output(sentences):
    own, moved = sentences.generate("own", "own"), sentences.generate("same case", "same case")
    assert moved == [own[row] for row in sentences.donors["same case"].tolist()]


# --- probes ---------------------------------------------------------------------------------------


def test_probe_finds_what_is_there_and_only_that():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (600,), generator=generator)
    states = torch.randn(600, 5, generator=generator)
    rows = torch.arange(600)
    nothing = ProbeResult.measure(states, labels, rows, generator)
    assert nothing.accuracy == pytest.approx(1 / 3, abs=0.08)
    found = ProbeResult.measure(states + 5 * torch.eye(3, 5)[labels], labels, rows, generator)
    assert found.accuracy > 0.95
    assert found.shuffled < 0.6


def test_probe_that_reads_as_much_before_training_is_no_effect():
    """The letter is always read; the position is judged against the model before training."""
    shares = {parts: Shares(1.0, 1.0, 1.0, 0.0) for parts in EXCHANGES}
    letter = {"encoder state: letter": ProbeResult(1.0, 0.2)}
    before, after = (
        letter | {"encoder state: position": ProbeResult(accuracy, 0.17)}
        for accuracy in (0.44, 0.76)
    )
    measured = SimpleNamespace(shares=shares, probes=after)
    assert failed(judge_effect(measured, before)) == []  # type: ignore[arg-type]
    assert failed(judge_effect(measured, after)) == ["accuracy of a probe"]  # type: ignore[arg-type]


def test_letters_lost_with_a_start_state_of_zeros_are_noted(lab, untrained):
    (note,) = (note for note in lab.run(**untrained).notes if note.startswith("start state 0"))
    assert "cut against" in note
    assert "not explained" in note


def test_letters_of_a_source(sentences):
    mask = letter_mask(make_batch(sentences))
    assert mask.sum(1).tolist() == [3, 3, 3, 3]
    assert not mask[:, 0].any()


# --- input and output -----------------------------------------------------------------------------


def test_gradients_by_input_and_by_part(sentences):
    batch = make_batch(sentences)
    assert count_unshifted(batch) == 0
    norms = input_gradients(sentences.model, batch, 1)
    assert all(norm > 0 for norm in norms[:2])
    assert norms[2:] == [0, 0]
    parts = part_gradients(sentences.model, batch)
    assert all(norm > 0 for norm in parts.values())
    counted = sum(w.numel() for w in sentences.model.parameters())
    assert len(parts) == 7
    assert counted == sentences.model.parameter_count


def test_lengths_and_cases_of_exchanged_sentences():
    pairs = sample_pairs(20, range(7, 8), 4, random.Random(0))
    assert {len(target) for _, target in pairs} == {7}
    assert {source[:3] for source, _ in pairs} == {"<U>", "<L>"}


# --- the worksheet --------------------------------------------------------------------------------


def without_bias(train_states, train_labels, states):
    one_hot = torch.nn.functional.one_hot(train_labels).double()
    return (states @ (torch.linalg.pinv(train_states) @ one_hot)).argmax(1)


def nearest_mean(train_states, train_labels, states):
    classes = range(int(train_labels.max()) + 1)
    means = torch.stack([train_states[train_labels == c].mean(0) for c in classes])
    return torch.cdist(states, means).argmin(1)


def class_number(train_states, train_labels, states):
    ones = torch.ones(len(train_states), 1, dtype=torch.float64)
    weights = torch.linalg.pinv(torch.cat([train_states, ones], 1)) @ train_labels.double()
    return (states @ weights[:-1] + weights[-1]).round().clamp(0, int(train_labels.max())).long()


@pytest.mark.parametrize(
    "wrong",
    [without_bias, nearest_mean, class_number, lambda x, y, states: probe(x, y, states)[:, None]],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert messages
    assert "append a 1" in messages[0]
