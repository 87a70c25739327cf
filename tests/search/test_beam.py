"""Beam search against greedy search, against brute force, and its invariants."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import NotFiniteError
from regard.models import Model
from regard.models.interface import DecoderState, Memory
from regard.search import Hypothesis, beam, greedy
from regard.search.beam import Beam
from regard.text.tokenizer import BOS, EOS, PAD, UNK

LENGTHS, MAX_LENGTHS = (7, 2, 5, 1, 3), (9, 17, 1, 13, 5)
PENALTIES = (0.0, 0.6, 1.0)


@pytest.fixture
def build(build_model) -> Callable[[str, int, float], Model]:
    """A model with a bias on the logit of EOS, so that outputs end soon, or never."""

    def build_biased(name: str, vocab: int, eos: float) -> Model:
        model = build_model(name, vocab)
        bias = torch.zeros(vocab, dtype=torch.float64).index_fill(0, torch.tensor([EOS]), eos)
        for member in model.members:
            project = member.project
            member.project = lambda features, project=project: project(features) + bias
        return model

    return build_biased


@pytest.fixture
def build_batch(random_sources) -> Callable[..., tuple[Tensor, Tensor]]:
    def build_default(vocab: int = 11, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
        return random_sources(vocab, lengths)

    return build_default


def search(model, batch, max_lengths=MAX_LENGTHS, **options) -> list[list[Hypothesis]]:
    return beam(model, model.encode(*batch), torch.tensor(max_lengths), **options)


def assert_same(results: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in row] for row in results] == [[h.ids for h in row] for row in expected]
    for result, reference in zip(chain(*results), chain(*expected), strict=True):
        assert result.score == pytest.approx(reference.score, abs=1e-4)
        assert result.normalised == pytest.approx(reference.normalised, abs=1e-4)


def log_probability(model, batch, row: int, ids: list[int]) -> float:
    """Log-probability of an output, by teacher forcing."""
    inputs = [tensor[row : row + 1, : LENGTHS[row]] for tensor in batch]
    logits = model(*inputs, torch.tensor([[BOS, *ids[:-1]]]))[0]
    return float(logits.log_softmax(-1)[torch.arange(len(ids)), ids].sum())


# --- beam size 1 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [-3.0, 2.0])
def test_beam_size_1_equals_greedy(build, build_batch, name, eos):
    model, batch = build(name, 11, eos), build_batch()
    expected = greedy(model, model.encode(*batch), torch.tensor(MAX_LENGTHS))
    for penalty in (0.0, 1.0):
        results = search(model, batch, beam_size=1, length_penalty=penalty)
        assert [row[0].ids for row in results] == [h.ids for h in expected]
        scores = [row[0].score for row in results]
        assert scores == pytest.approx([h.score for h in expected], abs=1e-4)


# --- exhaustive beam ------------------------------------------------------------------------------

VOCAB, MAX_LENGTH = 7, 4
TOKENS = [i for i in range(VOCAB) if i not in (PAD, BOS, EOS)]
EXHAUSTIVE_BEAM = (len(TOKENS) + 1) * len(TOKENS) ** (MAX_LENGTH - 1)


def all_outputs(
    model, tokens: Tensor, state: Any, max_length: int
) -> list[tuple[list[int], float]]:
    """(ids, score) of every output that ends within `max_length` tokens, for a batch of one."""
    logits, state = model.step(tokens, state)
    log_probs = logits[0].log_softmax(-1).tolist()
    outputs = [([EOS], log_probs[EOS])]
    for token in TOKENS if max_length > 1 else []:
        rest = all_outputs(model, torch.tensor([token]), state.copy(), max_length - 1)
        outputs += [([token, *ids], log_probs[token] + score) for ids, score in rest]
    return outputs


def test_an_exhaustive_beam_equals_brute_force(build, build_batch, name):
    model, max_lengths = build(name, VOCAB, 0.5), (MAX_LENGTH, 2, 3)
    batch = build_batch(VOCAB, (3, 5, 2))
    options = {"beam_size": EXHAUSTIVE_BEAM, "nbest": EXHAUSTIVE_BEAM}
    results = {
        penalty: search(model, batch, max_lengths, length_penalty=penalty, **options)
        for penalty in PENALTIES
    }
    for row, max_length in enumerate(max_lengths):
        memory = model.encode(*batch).select(torch.tensor([row]))
        outputs = all_outputs(model, torch.tensor([BOS]), model.init_state(memory), max_length)
        for penalty in PENALTIES:
            best = results[penalty][row]
            scores = {tuple(ids): score / len(ids) ** penalty for ids, score in outputs}
            assert len(best) == len(scores) == sum(len(TOKENS) ** n for n in range(max_length))
            normalised = [h.normalised for h in best]
            assert normalised == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)
            assert normalised == pytest.approx([scores[tuple(h.ids)] for h in best], abs=1e-4)
            assert best[0].ids == list(max(scores, key=scores.__getitem__))


def test_an_exhaustive_beam_with_small_nbest_equals_the_start_of_the_full_list(
    build, build_batch, name
):
    model, batch = build(name, VOCAB, 0.5), build_batch(VOCAB, (3, 5, 2))
    for penalty in PENALTIES:
        options = {"beam_size": EXHAUSTIVE_BEAM, "length_penalty": penalty}
        full = search(model, batch, [MAX_LENGTH] * 3, nbest=EXHAUSTIVE_BEAM, **options)
        results = search(model, batch, [MAX_LENGTH] * 3, nbest=5, **options)
        assert_same(results, [row[:5] for row in full])


# --- other beam sizes -----------------------------------------------------------------------------


def test_a_larger_nbest_never_changes_the_best(build, build_batch, name):
    model, batch = build(name, 11, 1.0), build_batch()
    for penalty in (0.0, 1.0):
        full = search(model, batch, beam_size=5, nbest=5, length_penalty=penalty)
        for nbest in (1, 4):
            results = search(model, batch, beam_size=5, nbest=nbest, length_penalty=penalty)
            assert_same(results, [row[:nbest] for row in full])


def test_early_termination_does_not_change_the_results(build, build_batch, name, monkeypatch):
    model, batch = build(name, 11, 1.0), build_batch()
    for penalty, nbest in ((0.0, 1), (0.6, 3), (1.0, 1), (1.0, 3)):
        options = {"beam_size": 3, "nbest": nbest, "length_penalty": penalty}
        early = search(model, batch, **options)
        with monkeypatch.context() as patch:
            patch.setattr(Beam, "is_final", lambda self, best: best == float("-inf"))
            assert_same(early, search(model, batch, **options))


def test_results_do_not_depend_on_the_check_interval(build, build_batch, name):
    model, batch = build(name, 11, 1.0), build_batch()
    for penalty in (0.0, 1.0):
        options = {"beam_size": 3, "nbest": 2, "length_penalty": penalty}
        expected = search(model, batch, **options)
        for check_every in (2, 3, 100):
            assert_same(search(model, batch, check_every=check_every, **options), expected)


def test_early_termination_saves_steps(build, build_batch, monkeypatch):
    model, batch = build("gru", 11, 4.0), build_batch()
    steps, step = [], model.step
    model.step = lambda tokens, state: (steps.append(len(tokens)), step(tokens, state))[1]
    search(model, batch, beam_size=3, length_penalty=0.0)
    early = sum(steps)
    steps.clear()
    monkeypatch.setattr(Beam, "is_final", lambda self, best: best == float("-inf"))
    search(model, batch, beam_size=3, length_penalty=0.0)
    assert early < sum(steps) / 2


def test_results_do_not_depend_on_the_batch_or_on_padding(build, build_batch, name):
    model, batch = build(name, 11, 1.0), build_batch()
    options = {"beam_size": 4, "nbest": 3}
    expected = search(model, batch, **options)
    order = [3, 0, 4, 2, 1]
    permuted = search(model, [t[order] for t in batch], [MAX_LENGTHS[r] for r in order], **options)
    assert_same(permuted, [expected[row] for row in order])
    ids, mask = batch
    padded = pad(torch.where(mask, ids, 9), (0, 3), value=5), pad(mask, (0, 3))
    assert_same(search(model, padded, **options), expected)
    for row, (length, max_length) in enumerate(zip(LENGTHS, MAX_LENGTHS, strict=True)):
        single = [tensor[row : row + 1, :length] for tensor in batch]
        assert_same(search(model, single, [max_length], **options), [expected[row]])


@pytest.mark.parametrize("eos", [-50.0, 1.0])
def test_the_score_is_the_log_probability_of_the_output(build, build_batch, name, eos):
    model, batch = build(name, 11, eos), build_batch()
    for row, best in enumerate(search(model, batch, beam_size=4, nbest=4, length_penalty=0.6)):
        for hypothesis in best:
            expected = log_probability(model, batch, row, hypothesis.ids)
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)
            penalty = len(hypothesis.ids) ** 0.6
            assert hypothesis.normalised == pytest.approx(hypothesis.score / penalty)


def test_each_row_obeys_its_maximum_length_and_eos_is_last(build, build_batch, name):
    model, batch = build(name, 11, 0.0), build_batch()
    results = search(model, batch, beam_size=4, nbest=4)
    for best, max_length in zip(results, MAX_LENGTHS, strict=True):
        assert best
        assert len({tuple(h.ids) for h in best}) == len(best)
        for hypothesis in best:
            assert 1 <= len(hypothesis.ids) <= max_length
            assert not {PAD, BOS, EOS} & set(hypothesis.ids[:-1])


def test_hypotheses_without_eos_are_truncated_at_the_rows_maximum_length(build, build_batch, name):
    model = build(name, 11, -1000.0)
    results = search(model, build_batch(), beam_size=3, nbest=3)
    lengths = [[len(h.ids) for h in row] for row in results]
    assert lengths == [[max_length] * 3 for max_length in MAX_LENGTHS]
    for row in results:
        assert [h.normalised for h in row] == sorted((h.normalised for h in row), reverse=True)


def test_a_beam_larger_than_the_vocabulary(build, build_batch, name):
    model = build(name, VOCAB, 1000.0)
    results = search(model, build_batch(VOCAB), beam_size=50)
    assert [row[0].ids for row in results] == [[EOS]] * len(MAX_LENGTHS)
    best = search(model, build_batch(VOCAB, (3,)), [1], beam_size=50, nbest=50)[0]
    assert [h.ids for h in best] == [[EOS]]  # truncated ones count only where none has EOS


# --- a model with hand-set probabilities ----------------------------------------------------------


@dataclass
class ScriptedState(DecoderState):
    ids: Tensor  # [batch beam length]

    def expand(self, beam):
        return ScriptedState(self.ids.repeat_interleave(beam, dim=1))

    def reorder(self, beam_indices):
        return ScriptedState(
            self.ids.gather(1, beam_indices[..., None].expand(-1, -1, self.ids.shape[-1]))
        )


class Scripted(Model):
    """The next-token probabilities after each prefix; EOS after all others."""

    def __init__(self, script: dict[tuple[int, ...], dict[int, float]]) -> None:
        super().__init__()
        self.script = script

    def _encode(self, source, mask, need_weights):
        return Memory(source[..., None].float(), mask), []

    def init_state(self, memory):
        return ScriptedState(torch.zeros(len(memory.mask), 1, 0, dtype=torch.int64))

    def step(self, tokens, state):
        ids = torch.cat([state.ids, tokens.view(len(state.ids), -1, 1)], dim=-1)
        logits = torch.full((len(tokens), 8), -60.0)
        for row, prefix in zip(logits, ids.flatten(0, 1)[:, 1:].tolist(), strict=True):
            for token, probability in self.script.get(tuple(prefix), {EOS: 1.0}).items():
                row[token] = torch.tensor(probability).log()
        return logits, ScriptedState(ids)

    features = project = _attention_weights = output_projection = None


A, B, C = 4, 5, 6
SCRIPT = {
    (): {EOS: 0.4, A: 0.5, B: 0.1},
    (A,): {EOS: 0.7, B: 0.3},
    (A, B): {C: 1.0},
    (A, B, C): {C: 1.0},
    (A, B, C, C): {C: 1.0},
}
RANKED = {  # computed by hand: log .4 / 1, log .35 / 2^p, log .15 / 6^p, log .1 / 2^p
    0.0: [[EOS], [A, EOS], [A, B, C, C, C, EOS], [B, EOS]],
    0.6: [[A, B, C, C, C, EOS], [A, EOS], [EOS], [B, EOS]],
    1.0: [[A, B, C, C, C, EOS], [A, EOS], [EOS], [B, EOS]],
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("nbest", [1, 2, 4])
def test_finished_hypotheses_of_different_lengths_compete(penalty, nbest):
    batch = torch.tensor([[3]]), torch.tensor([[True]])
    options = {"beam_size": 4, "nbest": nbest, "length_penalty": penalty}
    [best] = search(Scripted(SCRIPT), batch, [9], **options)
    assert [h.ids for h in best] == RANKED[penalty][:nbest]


def test_a_better_hypothesis_may_finish_later():
    script = {(): {EOS: 0.4, A: 0.6}, (A,): {UNK: 1.0}}
    batch = torch.tensor([[3]]), torch.tensor([[True]])
    [best] = search(Scripted(script), batch, [5], beam_size=2, length_penalty=0.0)
    assert best[0].ids == [A, UNK, EOS]
    [best] = search(Scripted(script), batch, [2], beam_size=2, length_penalty=0.0)
    assert best[0].ids == [EOS]  # the better one would be truncated


@pytest.mark.parametrize("check_every", [1, 3, 100])
def test_a_finished_hypothesis_does_not_hide_nan(check_every):
    """The NaN may occur at any step after it, also at the last before the maximum length."""
    batch = torch.tensor([[3]]), torch.tensor([[True]])
    for steps in (1, 2, 3):
        script = {(A,) * n: {A: 1.0} for n in range(1, steps)}
        script |= {(): {EOS: 0.1, A: 0.9}, (A,) * steps: {A: float("nan"), EOS: 0.5}}
        for max_length in range(steps + 1, 6):
            options = {"beam_size": 2, "length_penalty": 0.0, "check_every": check_every}
            with pytest.raises(NotFiniteError):
                search(Scripted(script), batch, [max_length], **options)
