"""Beam search against greedy search, against every output there is, and against itself."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.models import Model
from regard.models.interface import DecoderState, Memory
from regard.search import Hypothesis, beam, greedy
from regard.search.beam import Finished
from regard.text.tokenizer import BOS, EOS, PAD, UNK

LENGTHS, LIMITS = (7, 2, 5, 1, 3), (9, 17, 1, 13, 5)
POWERS = (0.0, 0.6, 1.0)
NAMES = [
    *("gru", "bottleneck", "input-feeding", "tutorial"),
    *("transformer", "rotary", "grouped-window", "latent"),
]


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def make(lively) -> Callable[[str, int, float], Model]:
    """A lively model by its name; `end` makes outputs end soon."""

    def made(name: str, vocab: int, end: float) -> Model:
        model = lively(name, vocab)
        plain = model.project
        leaning = torch.zeros(vocab, dtype=torch.float64).index_fill(0, torch.tensor([EOS]), end)
        model.project = lambda features: plain(features) + leaning
        return model

    return made


@pytest.fixture
def source(sources) -> Callable[..., tuple[Tensor, Tensor]]:
    def made(vocab: int = 11, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
        return sources(vocab, lengths)

    return made


def search(model, given, limits=LIMITS, **choices) -> list[list[Hypothesis]]:
    return beam(model, model.encode(*given), torch.tensor(limits), **choices)


def same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in row] for row in found] == [[h.ids for h in row] for row in wanted]
    for one, other in zip(chain(*found), chain(*wanted), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.normalised == pytest.approx(other.normalised, abs=1e-4)


def forced(model, given, row: int, ids: list[int]) -> float:
    """The log-probability of an output, read at once."""
    inputs = [tensor[row : row + 1, : LENGTHS[row]] for tensor in given]
    logits = model(*inputs, torch.tensor([[BOS, *ids[:-1]]]))[0]
    return float(logits.log_softmax(-1)[torch.arange(len(ids)), ids].sum())


# --- a beam of one --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [-3.0, 0.0, 2.0])
def test_a_beam_of_one_is_greedy(make, source, name, end):
    model, given = make(name, 11, end), source()
    wanted = greedy(model, model.encode(*given), torch.tensor(LIMITS))
    for power in POWERS:
        found = search(model, given, beam_size=1, length_penalty=power)
        assert [row[0].ids for row in found] == [h.ids for h in wanted]
        assert [row[0].score for row in found] == pytest.approx([h.score for h in wanted], abs=1e-4)


# --- a beam of all --------------------------------------------------------------------------------

VOCAB, MOST = 7, 4
WORDS = [i for i in range(VOCAB) if i not in (PAD, BOS, EOS)]
EVERY = (len(WORDS) + 1) * len(WORDS) ** (MOST - 1)


def outputs(model, tokens: Tensor, state: Any, limit: int) -> list[tuple[list[int], float]]:
    """(ids, score) of every output that ends within `limit` tokens, for a batch of one."""
    logits, state = model.step(tokens, state)
    chances = logits[0].log_softmax(-1).tolist()
    found = [([EOS], chances[EOS])]
    for word in WORDS if limit > 1 else []:
        rest = outputs(model, torch.tensor([word]), state.copy(), limit - 1)
        found += [([word, *ids], chances[word] + score) for ids, score in rest]
    return found


def test_a_beam_of_full_width_is_brute_force(make, source, name):
    model, limits = make(name, VOCAB, 0.5), (MOST, 2, 3)
    given = source(VOCAB, (3, 5, 2))
    choices = {"beam_size": EVERY, "nbest": EVERY}
    found = {
        power: search(model, given, limits, length_penalty=power, **choices) for power in POWERS
    }
    for row, limit in enumerate(limits):
        memory = model.encode(*given).select(torch.tensor([row]))
        every = outputs(model, torch.tensor([BOS]), model.init_state(memory), limit)
        for power in POWERS:
            best = found[power][row]
            rank = {tuple(ids): score / len(ids) ** power for ids, score in every}
            assert len(best) == len(rank) == sum(len(WORDS) ** n for n in range(limit))
            order = [h.normalised for h in best]
            assert order == pytest.approx(sorted(rank.values(), reverse=True), abs=1e-4)
            assert order == pytest.approx([rank[tuple(h.ids)] for h in best], abs=1e-4)
            assert best[0].ids == list(max(rank, key=rank.__getitem__))


@pytest.mark.parametrize("power", POWERS)
def test_a_wide_beam_finds_the_first_few_of_brute_force_and_may_stop_early(
    make, source, name, power
):
    model, given = make(name, VOCAB, 0.5), source(VOCAB, (3, 5, 2))
    choices = {"beam_size": EVERY, "length_penalty": power}
    every = search(model, given, [MOST] * 3, nbest=EVERY, **choices)
    same(search(model, given, [MOST] * 3, nbest=5, **choices), [row[:5] for row in every])


# --- beams in between -----------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_asking_for_more_never_changes_the_best(make, source, name, power):
    model, given = make(name, 11, 1.0), source()
    most = search(model, given, beam_size=5, nbest=5, length_penalty=power)
    for nbest in (1, 2, 4):
        found = search(model, given, beam_size=5, nbest=nbest, length_penalty=power)
        same(found, [row[:nbest] for row in most])


@pytest.mark.parametrize(("power", "nbest"), [(0.0, 1), (0.6, 3), (1.0, 1), (1.0, 3)])
def test_stopping_early_loses_nothing(make, source, name, power, nbest, monkeypatch):
    model, given = make(name, 11, 1.0), source()
    choices = {"beam_size": 3, "nbest": nbest, "length_penalty": power}
    early = search(model, given, **choices)
    monkeypatch.setattr(Finished, "is_final", lambda self, best_live: best_live == float("-inf"))
    same(early, search(model, given, **choices))


@pytest.mark.parametrize("check_every", [2, 3, 8, 100])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_looking_rarely_for_what_is_settled_finds_the_same(make, source, name, power, check_every):
    model, given = make(name, 11, 1.0), source()
    choices = {"beam_size": 3, "nbest": 2, "length_penalty": power}
    wanted = search(model, given, **choices)
    same(search(model, given, check_every=check_every, **choices), wanted)


def test_stopping_early_saves_steps(make, source, monkeypatch):
    model, given = make("gru", 11, 4.0), source()
    steps, plain = [], model.step
    model.step = lambda tokens, state: (steps.append(len(tokens)), plain(tokens, state))[1]
    search(model, given, beam_size=3, length_penalty=0.0)
    early = sum(steps)
    steps.clear()
    monkeypatch.setattr(Finished, "is_final", lambda self, best_live: best_live == float("-inf"))
    search(model, given, beam_size=3, length_penalty=0.0)
    assert early < sum(steps) / 2


def test_rows_do_not_know_of_each_other_or_of_padding(make, source, name):
    model, given = make(name, 11, 1.0), source()
    choices = {"beam_size": 4, "nbest": 3}
    together = search(model, given, **choices)
    order = [3, 0, 4, 2, 1]
    turned = search(model, [t[order] for t in given], [LIMITS[r] for r in order], **choices)
    same(turned, [together[row] for row in order])
    ids, mask = given
    wider = torch.nn.functional.pad(torch.where(mask, ids, 9), (0, 3), value=5)
    same(search(model, (wider, torch.nn.functional.pad(mask, (0, 3))), **choices), together)
    for row, (length, limit) in enumerate(zip(LENGTHS, LIMITS, strict=True)):
        alone = [tensor[row : row + 1, :length] for tensor in given]
        same(search(model, alone, [limit], **choices), [together[row]])


@pytest.mark.parametrize("end", [-50.0, 1.0])
def test_the_score_is_the_log_probability_of_the_output(make, source, name, end):
    model, given = make(name, 11, end), source()
    for row, best in enumerate(search(model, given, beam_size=4, nbest=4, length_penalty=0.6)):
        for found in best:
            assert found.score == pytest.approx(forced(model, given, row, found.ids), abs=1e-4)
            assert found.normalised == pytest.approx(found.score / len(found.ids) ** 0.6)


def test_each_row_keeps_its_limit_and_the_end_stands_last(make, source, name):
    model, given = make(name, 11, 0.0), source()
    for best, limit in zip(search(model, given, beam_size=4, nbest=4), LIMITS, strict=True):
        assert best
        assert len({tuple(h.ids) for h in best}) == len(best)
        for found in best:
            assert 1 <= len(found.ids) <= limit
            assert not {PAD, BOS, EOS} & set(found.ids[:-1])


def test_what_never_ends_is_cut_at_its_own_limit(make, source, name):
    model = make(name, 11, -1000.0)
    found = search(model, source(), beam_size=3, nbest=3)
    assert [[len(h.ids) for h in row] for row in found] == [[limit] * 3 for limit in LIMITS]
    for row in found:
        assert [h.normalised for h in row] == sorted((h.normalised for h in row), reverse=True)


def test_a_beam_wider_than_the_vocabulary(make, source, name):
    model = make(name, VOCAB, 1000.0)
    assert [row[0].ids for row in search(model, source(VOCAB), beam_size=50)] == [[EOS]] * len(
        LIMITS
    )
    best = search(model, source(VOCAB, (3,)), [1], beam_size=50, nbest=50)[0]
    assert [h.ids for h in best] == [[EOS]]  # what is cut short counts only where nothing ended


# --- a model whose every probability is known -----------------------------------------------------


@dataclass
class Script(DecoderState):
    ids: Tensor  # [batch beam length]

    def expand(self, beam):
        return Script(self.ids.repeat_interleave(beam, dim=1))

    def reorder(self, beam_indices):
        return Script(
            self.ids.gather(1, beam_indices[..., None].expand(-1, -1, self.ids.shape[-1]))
        )


class Scripted(Model):
    """The next-token probabilities after each prefix; EOS after all others."""

    def __init__(self, script: dict[tuple[int, ...], dict[int, float]]) -> None:
        super().__init__()
        self.script = script

    def encode(self, source, mask):
        return Memory(source[..., None].float(), mask)

    def init_state(self, memory):
        return Script(torch.zeros(len(memory.mask), 1, 0, dtype=torch.int64))

    def step(self, tokens, state):
        ids = torch.cat([state.ids, tokens.view(len(state.ids), -1, 1)], dim=-1)
        chances = torch.full((len(tokens), 8), -60.0)
        for row, said in zip(chances, ids.flatten(0, 1)[:, 1:].tolist(), strict=True):
            for token, chance in self.script.get(tuple(said), {EOS: 1.0}).items():
                row[token] = torch.tensor(chance).log()
        return chances, Script(ids)

    features = project = attention_weights = output_projection = None


A, B, C = 4, 5, 6
SCRIPT = {
    (): {EOS: 0.4, A: 0.5, B: 0.1},
    (A,): {EOS: 0.7, B: 0.3},
    (A, B): {C: 1.0},
    (A, B, C): {C: 1.0},
    (A, B, C, C): {C: 1.0},
}
RANKED = {  # by hand: log .4 / 1, log .35 / 2^p, log .15 / 6^p, log .1 / 2^p
    0.0: [[EOS], [A, EOS], [A, B, C, C, C, EOS], [B, EOS]],
    0.6: [[A, B, C, C, C, EOS], [A, EOS], [EOS], [B, EOS]],
    1.0: [[A, B, C, C, C, EOS], [A, EOS], [EOS], [B, EOS]],
}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("nbest", [1, 2, 4])
def test_finished_outputs_of_different_lengths_compete(power, nbest):
    given = torch.tensor([[3]]), torch.tensor([[True]])
    found = search(Scripted(SCRIPT), given, [9], beam_size=4, nbest=nbest, length_penalty=power)[0]
    assert [h.ids for h in found] == RANKED[power][:nbest]


def test_a_better_output_may_end_later_than_a_good_one():
    script = {(): {EOS: 0.4, A: 0.6}, (A,): {UNK: 1.0}}
    given = torch.tensor([[3]]), torch.tensor([[True]])
    [found] = search(Scripted(script), given, [5], beam_size=2, length_penalty=0.0)
    assert found[0].ids == [A, UNK, EOS]
    [cut] = search(Scripted(script), given, [2], beam_size=2, length_penalty=0.0)
    assert cut[0].ids == [EOS]  # the better one would not be whole
