"""Models with a position table: no search exceeds the maximum length, and longer texts are rejected."""

import pytest
import torch

from regard.api import Translator
from regard.config import Config
from regard.errors import UserError
from regard.evaluation import ablate, evaluate
from regard.models import Model, build
from regard.search import beam, greedy, sample
from regard.text.tokenizer import BOS, EOS, TokenizerPair

MAX_LENGTH, VOCAB = 23, 11
LEARNED = {"kind": "learned", "max_length": MAX_LENGTH}
TABLES = {
    "transformer": {"kind": "transformer", "d_model": 12, "position": LEARNED},
    "decoder-only": {"kind": "decoder-only", "d_model": 12, "position": LEARNED},
    "state-space": {
        "kind": "decoder-only",
        "d_model": 12,
        "position": LEARNED,
        "mixer": "state-space",
    },
    "recurrent": {"hidden_dim": 7, "embedding_dim": 5, "encoder": {"position": LEARNED}},
}
MAX_TARGET_LENGTHS = {  # after sources of 1, 9, 22, 23 and 24 tokens
    "transformer": [23, 23, 23, 23, 0],
    "decoder-only": [22, 14, 1, 0, 0],
    "state-space": [22, 14, 1, 0, 0],
    "recurrent": [None, None, None, None, 0],
}


def build_config(name: str, max_tokens: int, **search: float) -> Config:
    table = {"model": TABLES[name], "tokenizer": {"max_tokens": max_tokens}, "search": search}
    return Config.model_validate(table)


@pytest.fixture(params=TABLES)
def named_model(request) -> tuple[str, Model]:
    """(name, model) of TABLES; the model never generates EOS, so that only a limit ends an output."""
    torch.manual_seed(1)
    model = build(build_config(request.param, 10).model, VOCAB, VOCAB, joint=False).eval()
    project = model.project
    bias = torch.zeros(VOCAB)
    bias[EOS] = float("-inf")
    model.project = lambda features: project(features) + bias
    return request.param, model


def encode(model: Model, *lengths: int):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return model.encode(torch.full_like(mask, 5, dtype=torch.long), mask)


def test_a_model_can_use_its_maximum_target_length_and_no_more(named_model):
    name, model = named_model
    lengths = (1, 9, 22, 23, 24)
    assert [model.max_target_length(length) for length in lengths] == MAX_TARGET_LENGTHS[name]
    with torch.inference_mode():
        for length in lengths[:3]:
            state = model.init_state(encode(model, length))
            for _ in range(model.max_target_length(length) or 40):
                _, state = model.step(torch.tensor([BOS]), state)
            if model.max_target_length(length):
                with pytest.raises(UserError, match="has a table of 23 positions"):
                    model.step(torch.tensor([BOS]), state)
        with pytest.raises(UserError, match="has a table of 23 positions"):
            encode(model, 24)


def test_other_position_encodings_are_unlimited():
    for kind in ("sinusoidal", "rotary", "none"):
        table = Config.model_validate({"model": {"kind": "decoder-only", "position": kind}}).model
        assert build(table, VOCAB, VOCAB, joint=True).max_target_length(10**6) is None


@pytest.mark.parametrize("check_every", [1, 8])
def test_no_search_exceeds_the_maximum_length_of_a_row(named_model, check_every):
    """Not even if finished rows are removed only every 8 steps, as on a GPU."""
    name, model = named_model
    lengths = (19, 3, 11)  # the first row has the lowest maximum
    limits = [min(31, model.max_target_length(length) or 31) for length in lengths]
    expected = {"transformer": [23] * 3, "recurrent": [31] * 3}
    assert limits == expected.get(name, [4, 20, 12])
    max_lengths = torch.tensor(limits)
    memory = encode(model, *lengths)
    results = [
        greedy(model, memory, max_lengths, check_every),
        sample(model, memory, max_lengths, [3, 5, 7], check_every=check_every),
        [best[0] for best in beam(model, memory, max_lengths, 3, check_every=check_every)],
    ]
    for outputs in results:
        assert [len(output.ids) for output in outputs] == limits


PAIRS = [("abcabcab", "ab"), ("a", "b" * 7), ("c" * 10, "c")]


def build_translator(name: str, max_tokens: int = 10, **search: float) -> Translator:
    torch.manual_seed(5)
    config = build_config(name, max_tokens, **search)
    tokenizers = TokenizerPair.train(config.tokenizer, PAIRS, ())
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return Translator(config, tokenizers, build(config.model, *sizes, tokenizers.joint))


@pytest.mark.parametrize("name", TABLES)
def test_max_output_length_is_limited_by_config_and_model(name):
    translator = build_translator(name, max_ratio=1.5, max_extra=20)
    lengths = [translator.max_output_length(source) for source in (2, 9, 11)]
    assert lengths == {
        "recurrent": [23, 33, 36],
        "transformer": [23, 23, 23],
    }.get(name, [21, 14, 12])
    for beam_size in (1, 3):
        for out in translator.translate([source for source, _ in PAIRS], beam=beam_size):
            assert len(out.target) <= translator.max_output_length(len(out.source))


TOO_LONG = {
    "transformer": (
        "a",
        "b" * 23,
        "source has 2 tokens and its target 23; .* allows at most 22 after that source",
    ),
    "decoder-only": (
        "abcabcab",
        "b" * 14,
        "source has 9 tokens and its target 14; .* allows at most 13 after that source",
    ),
    "state-space": (
        "abcabcab",
        "b" * 14,
        "source has 9 tokens and its target 14; .* allows at most 13 after that source",
    ),
    "recurrent": (
        "a" * 23,
        "b",
        "source has 24 tokens and its target 1; .* allows fewer in the source",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_pair_that_is_too_long_is_rejected(name):
    source, target, message = TOO_LONG[name]
    with pytest.raises(UserError, match=rf"text 2 is too long for .*{message}\. Shorten it"):
        evaluate(build_translator(name), [PAIRS[0], (source, target)])


def test_an_ablation_rejects_a_pair_that_is_too_long():
    translator, pair = build_translator("decoder-only"), TOO_LONG["decoder-only"][:2]
    for ablation in ("heads", "attention"):
        with pytest.raises(UserError, match="text 1 is too long"):
            ablate(translator, [pair], ablation)


@pytest.mark.filterwarnings("ignore:1 of 3 sources have more than")  # as they should
@pytest.mark.parametrize("name", TABLES)
def test_a_pair_that_fits_is_accepted_even_if_batch_padding_would_not_fit(name):
    source, target, _ = TOO_LONG[name]
    fits = (source[:-1], target) if name == "recurrent" else (source, target[:-1])
    translator, pairs = build_translator(name), [("c" * 10, "c"), ("a", "b" * 14), fits]
    loss = evaluate(translator, pairs)["loss"]
    assert loss == pytest.approx(evaluate(translator, pairs, batch_tokens=1)["loss"], rel=1e-5)
    if name == "decoder-only":
        report = ablate(translator, pairs, "attention", draws=1)
        assert report["baseline"]["loss"] == pytest.approx(loss, rel=1e-5)
