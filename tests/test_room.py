"""A table of positions has an end: no search runs past it, and no text that needs more is read."""

import pytest
import torch

from regard.config import Config
from regard.errors import UserError
from regard.evaluation import ablate, evaluate
from regard.models import Model, build
from regard.search import beam, greedy, sample
from regard.text.tokenizer import BOS, EOS, TokenizerPair
from regard.translator import Translator

PLACES, VOCAB = 23, 11
LEARNED = {"kind": "learned", "max_length": PLACES}
TABLES = {
    "transformer": {"kind": "transformer", "d_model": 12, "position": LEARNED},
    "decoder-only": {"kind": "decoder-only", "d_model": 12, "position": LEARNED},
    "space": {"kind": "decoder-only", "d_model": 12, "position": LEARNED, "mixer": "state-space"},
    "recurrent": {"hidden_dim": 7, "embedding_dim": 5, "encoder": {"position": LEARNED}},
}
ROOM = {  # behind sources of 1, 9, 22, 23 and 24 tokens
    "transformer": [23, 23, 23, 23, 0],
    "decoder-only": [22, 14, 1, 0, 0],
    "space": [22, 14, 1, 0, 0],
    "recurrent": [None, None, None, None, 0],
}


def config(name: str, tokens: int, **search: float) -> Config:
    table = {"model": TABLES[name], "tokenizer": {"max_tokens": tokens}, "search": search}
    return Config.model_validate(table)


@pytest.fixture(params=TABLES)
def named(request) -> tuple[str, Model]:
    torch.manual_seed(1)
    model = build(config(request.param, 10).model, VOCAB, VOCAB, joint=False).eval()
    plain = model.project
    never = torch.zeros(VOCAB)
    never[EOS] = float("-inf")  # so that only a limit ends an output
    model.project = lambda features: plain(features) + never
    return request.param, model


def read(model: Model, *lengths: int):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return model.encode(torch.full_like(mask, 5, dtype=torch.long), mask)


def test_a_model_knows_its_room_and_can_use_all_of_it(named):
    name, model = named
    lengths = (1, 9, 22, 23, 24)
    assert [model.max_target_length(length) for length in lengths] == ROOM[name]
    with torch.inference_mode():
        for length in lengths[:3]:
            state = model.init_state(read(model, length))
            for _ in range(model.max_target_length(length) or 40):
                _, state = model.step(torch.tensor([BOS]), state)
            if model.max_target_length(length):
                with pytest.raises(UserError, match="has a table of 23 places"):
                    model.step(torch.tensor([BOS]), state)
        with pytest.raises(UserError, match="has a table of 23 places"):
            read(model, 24)


def test_every_other_model_has_room_without_end():
    for kind in ("sinusoidal", "rotary", "none"):
        table = Config.model_validate({"model": {"kind": "decoder-only", "position": kind}}).model
        assert build(table, VOCAB, VOCAB, joint=True).room(10**6) is None


@pytest.mark.parametrize("check_every", [1, 8])
def test_no_search_goes_past_a_rows_own_limit(named, check_every):
    """Even where rows are dropped only now and then, as on a GPU: the first has least room."""
    name, model = named
    lengths = (19, 3, 11)
    limits = torch.tensor([min(31, model.max_target_length(length) or 31) for length in lengths])
    wanted = {"decoder-only": [4, 20, 12], "space": [4, 20, 12]}
    assert limits.tolist() == wanted.get(name, [23] * 3 if name == "transformer" else [31] * 3)
    memory = read(model, *lengths)
    found = [
        greedy(model, memory, limits, check_every),
        sample(model, memory, limits, [3, 5, 7], check_every=check_every),
        [best[0] for best in beam(model, memory, limits, 3, check_every=check_every)],
    ]
    for outputs in found:
        assert [len(output.ids) for output in outputs] == limits.tolist()


PAIRS = [("abcabcab", "ab"), ("a", "b" * 7), ("c" * 10, "c")]


def translator(name: str, tokens: int = 10, **search: float) -> Translator:
    torch.manual_seed(5)
    wanted = config(name, tokens, **search)
    tokenizers = TokenizerPair.train(wanted.tokenizer, PAIRS, ())
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return Translator(wanted, tokenizers, build(wanted.model, *sizes, tokenizers.joint))


@pytest.mark.parametrize("name", TABLES)
def test_an_output_is_as_long_as_it_may_be_but_no_longer_than_there_is_room(name):
    made = translator(name, max_ratio=1.5, max_extra=20)
    lengths = [made.limit(source) for source in (2, 9, 11)]
    assert lengths == {
        "recurrent": [23, 33, 36],
        "transformer": [23, 23, 23],
    }.get(name, [21, 14, 12])
    for width in (1, 3):
        for out in made.translate([source for source, _ in PAIRS], beam=width):
            assert len(out.target) <= made.limit(len(out.source))


LONG = {
    "transformer": (
        "a",
        "b" * 23,
        "source has 2 tokens, its target 23, .* room for 22 behind that",
    ),
    "decoder-only": ("abcabcab", "b" * 14, "source has 9 tokens, its target 14, .* 13 behind that"),
    "space": ("abcabcab", "b" * 14, "source has 9 tokens, its target 14, .* 13 behind that"),
    "recurrent": ("a" * 23, "b", "source has 24 tokens, its target 1, .* room for not so many"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_pair_without_room_is_refused_before_anything_is_read(name):
    made = translator(name)
    source, target, message = LONG[name]
    with pytest.raises(UserError, match=f"text 2 is too long for .*{message}; shorten it"):
        evaluate(made, [PAIRS[0], (source, target)])


def test_so_it_is_before_an_ablation():
    made, long = translator("decoder-only"), LONG["decoder-only"][:2]
    for what in ("heads", "attention"):
        with pytest.raises(UserError, match="text 1 is too long"):
            ablate(made, [long], what)


@pytest.mark.parametrize("name", TABLES)
def test_a_pair_that_fits_is_read_beside_others_whose_padding_would_not(name):
    source, target, _ = LONG[name]
    fits = (source[:-1], target) if name == "recurrent" else (source, target[:-1])
    made, pairs = translator(name), [("c" * 10, "c"), ("a", "b" * 14), fits]
    whole, alone = evaluate(made, pairs), evaluate(made, pairs, batch_tokens=1)
    assert whole["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    if name == "decoder-only":
        found = ablate(made, pairs, "attention", draws=1)
        assert found["baseline"]["loss"] == pytest.approx(whole["loss"], rel=1e-5)
