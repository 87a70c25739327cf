"""Synthetic pairs: what is left out and why, and files that do not depend on windows or interruptions."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from regard import augment, config, files
from regard.augment import FAULTS, Augmenter, Progress, RoundTrip, has_repetition, write_pairs
from regard.config import Recipe
from regard.errors import RegardWarning, UserError
from regard.models import build, weights
from regard.search import Hypothesis, token_log_probs
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import EOS, TokenizerPair
from regard.translator import Translator

WORDS = [f"{i * i * 7919 % 100_003:05}"[: 2 + i % 4] for i in range(37)]
SETTINGS = config.Config.model_validate(
    {
        "data": {"kind": "files", "train": "a.tsv", "val": "b.tsv"},
        "model": {"kind": "recurrent", "hidden_dim": 7, "embedding_dim": 5},
        "search": {"max_ratio": 0.0, "max_extra": 9},
    }
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .!"


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return TokenizerPair.train(config.Characters(max_tokens=30), [(LETTERS, LETTERS)], ())


class Stub(Translator):
    """A translator whose outputs are given: text -> (output, mean log-probability, ends with EOS)."""

    def __init__(self, model: Translator, outputs: dict[str, tuple[str, float, bool]]):
        super().__init__(model.config, model.tokenizers, model.model)
        self.outputs = outputs

    def search(self, encoded, beam_size, *, sampling, numbers):
        texts = [self.tokenizers.source.decode(ids) for ids in encoded.source]
        found = [self.outputs.get(text, (text[::-1], -0.5, True)) for text in texts]
        ids = [
            self.tokenizers.target.encode(output) + [EOS] * has_end for output, _, has_end in found
        ]
        scores = (score * len(each) for each, (_, score, _) in zip(ids, found, strict=True))
        return [[Hypothesis(each, score, score)] for each, score in zip(ids, scores, strict=True)]


# For each reason to leave a text out: texts, and what the model makes of them.
CASES = {
    "empty": (["  "], {}),
    "duplicate": (["abc", "Abc!"], {}),
    "held_out": (["held out"], {}),
    "unreadable": (["x" * 31], {}),
    "unfinished": (["abc"], {"abc": ("cba", -0.5, False)}),
    "blank": (["abc"], {"abc": ("", -0.5, True)}),
    "copy": (["abc"], {"abc": ("abc.", -0.5, True)}),
    "ratio": (["abc"], {"abc": ("abcdefghijklmnop", -0.5, True)}),
    "repetition": (["a dog barks"], {"a dog barks": ("x y x y x y", -0.5, True)}),
    "score": (["abc"], {"abc": ("cba", -2.5, True)}),
    "round_trip": (["improbable"], {}),
}


class Improbable(RoundTrip):
    def scores(self, texts, outputs):
        return [-9.0 if text == "improbable" else -1.0 for text in texts]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_without_a_pair_is_counted_by_reason(fault, model):
    texts, outputs = CASES[fault]
    check = Improbable(Stub(model, {}), -3.0)
    recipe = Recipe(min_score=-2.0)
    augmenter = Augmenter(Stub(model, outputs), recipe, {"heldout"}, check)
    pairs = augmenter.pairs(texts, 1)
    assert len(pairs) == len(texts) - 1  # the first of two equal texts gives a pair
    assert +augmenter.counts == +Counter({"texts": len(texts), "pairs": len(pairs), fault: 1})


def test_an_output_in_a_held_out_set_is_left_out(model):
    augmenter = Augmenter(Stub(model, {}), Recipe(), {"cba"})
    assert augmenter.pairs(["abc"], 1) == []
    assert augmenter.counts["held_out"] == 1


def test_the_output_is_the_source_of_back_translation(model):
    for reverse, sides in ((True, ("cba", "abc")), (False, ("abc", "cba"))):
        augmenter = Augmenter(Stub(model, {}), Recipe(reverse=reverse))
        [pair] = augmenter.pairs(["abc"], 7)
        assert pair == {"source": sides[0], "target": sides[1], "score": -0.5, "line": 7}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a a b b", False),
        ("the the the end", True),
        ("on and on and on it goes", False),
        ("on and on and on and", True),
        ("1 2 3 4 1 2 3 4 1 2 3 4", True),
        ("1 2 3 4 5 1 2 3 4 5 1 2 3 4 5", False),  # more than four words may be a refrain
        ("", False),
    ],
)
def test_repetition_is_one_to_four_words_three_times_in_a_row(text, expected):
    assert has_repetition(text.split()) == expected


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tokenizers) -> Translator:
    """A model with random weights, whose outputs are as good as any here."""
    torch.manual_seed(5)
    size = tokenizers.source.vocab_size
    built = build(SETTINGS.model, size, size, tokenizers.joint, Path())
    return Translator(SETTINGS, tokenizers, built)


RECIPES = {
    "greedy": Recipe(max_ratio=1e6),
    "beam": Recipe(max_ratio=1e6, beam=3, reverse=False),
    "sample": Recipe(max_ratio=1e6, sample=True, temperature=1.5, top_k=17, seed=3),
}


@pytest.fixture(params=RECIPES)
def recipe(request) -> Recipe:
    return RECIPES[request.param]


@pytest.fixture
def any_output(monkeypatch):
    """A random model hardly ever ends its output."""
    check = Augmenter.check_output

    def check_all_but_the_end(self, text, output, length, hypothesis, score):
        hypothesis = Hypothesis([*hypothesis.ids, EOS], hypothesis.score, 0.0)
        return check(self, text, output, length, hypothesis, score)

    monkeypatch.setattr(Augmenter, "check_output", check_all_but_the_end)


def write(model, recipe, out, report=lambda lines, counts: None, **origin):
    card = write_pairs(Augmenter(model, recipe), WORDS, out, origin, report)
    assert sorted(path.name for path in out.parent.iterdir()) == sorted(
        ["pairs.jsonl", "pairs.card.json"]
    )
    return out.read_bytes(), {name: card[name] for name in ("counts", "recipe")}


@pytest.fixture
def whole(model, recipe, any_output, tmp_path):
    (tmp_path / "whole").mkdir()
    return write(model, recipe, tmp_path / "whole" / "pairs.jsonl")


def test_the_pairs_do_not_depend_on_the_windows(model, recipe, whole, tmp_path, monkeypatch):
    records = [json.loads(line) for line in whole[0].decode().splitlines()]
    assert len(records) == whole[1]["counts"]["pairs"] > 20
    for size in (1, 5):
        monkeypatch.setattr(augment, "WINDOW", size)
        (tmp_path / str(size)).mkdir()
        assert write(model, recipe, tmp_path / str(size) / "pairs.jsonl") == whole


class Killed(BaseException):
    pass


@pytest.mark.parametrize("windows", [1, 2, 7])
def test_an_interrupted_file_goes_on_where_it_was(
    model, recipe, whole, windows, tmp_path, monkeypatch
):
    monkeypatch.setattr(augment, "WINDOW", 5)
    out, done = tmp_path / "part" / "pairs.jsonl", []
    out.parent.mkdir()

    def kill(lines, counts):
        done.append(lines)
        if len(done) == windows + 1:
            raise Killed

    with pytest.raises(Killed):
        write(model, recipe, out, kill)
    assert not out.exists()
    files.append(out.with_name("pairs.jsonl.part"), b"half a li")  # killed in the next window
    done.clear()
    assert write(model, recipe, out, lambda lines, counts: done.append(lines)) == whole
    assert done[0] == min(5 * windows, len(WORDS))


def test_another_origin_starts_again(model, any_output, tmp_path, monkeypatch):
    monkeypatch.setattr(augment, "WINDOW", 5)
    out = tmp_path / "pairs.jsonl"

    def kill(lines, counts):
        if lines == 10:
            raise Killed

    recipe = RECIPES["greedy"]
    with pytest.raises(Killed):
        write(model, recipe, out, kill, run="old")
    assert Progress.load(out, {"run": "old", "recipe": recipe.model_dump(mode="json")}).lines == 10
    starts: list[int] = []
    write(model, recipe, out, lambda lines, counts: starts.append(lines), run="new")
    assert starts[0] == 0


def test_one_process_writes_a_file(model, tmp_path):
    out = tmp_path / "pairs.jsonl"
    with files.hold(tmp_path / "pairs.jsonl.part"), pytest.raises(UserError, match="another proc"):
        write_pairs(Augmenter(model, Recipe()), WORDS, out, {})


def test_no_pair_is_an_error_with_the_counts(model, tmp_path):
    with pytest.raises(
        UserError, match=r"no pair is left for .*0 pairs of 2 texts; left out: 2 blank"
    ):
        write_pairs(Augmenter(model, Recipe()), ["", " "], tmp_path / "pairs.jsonl", {})


def test_the_round_trip_scores_the_text_given_the_output(model, any_output):
    round_trip = RoundTrip(model, -100.0)
    texts, outputs = ["abc", "x" * 31, "hello"], ["c", "d", "hallo welt"]
    found = round_trip.scores(texts, outputs)
    [first] = token_log_probs(
        model.model, EncodedPairs.from_pairs([("c", "abc")], model.tokenizers)
    )
    assert found[0] == pytest.approx(sum(first) / 4)
    assert found[1] == float("-inf")
    kept = Augmenter(model, Recipe(max_ratio=1e6), round_trip=round_trip).pairs(["abc", "abcd"], 1)
    assert all(pair["round_trip"] < 0 for pair in kept)


def test_the_card_names_the_weights(model):
    checksum = weights.checksum(weights.state_tensors(model.model))
    assert augment.describe(model, "a run") == {"run": "a run", "weights": checksum}


def test_held_out_sentences_are_those_of_validation_and_test(tmp_path):
    (tmp_path / "val.tsv").write_text("Hello!\tHallo\n")
    data = config.FileData(train="none.tsv", val=str(tmp_path / "val.tsv"))
    assert augment.held_out_sentences(data) == {"hello", "hallo"}
    data = data.model_copy(update={"test": str(tmp_path / "missing.tsv")})
    with pytest.warns(RegardWarning, match="sentences of the test set are not left out"):
        assert augment.held_out_sentences(data) == {"hello", "hallo"}
