"""Synthetic pairs in the training data, and the text that they are made of."""

import json
from pathlib import Path

import pytest

from regard import config, presets
from regard.config import Recipe, SyntheticPairs
from regard.config.synthetic import RECIPE
from regard.errors import UserError
from regard.text import corpus
from regard.text.synthetic import TAG, languages, load_monolingual, load_sentences
from regard.text.tokenizer import TokenizerPair

REAL = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("fünf", "five")]
MADE = [("sechs", "six"), ("acht", "Eight!"), ("sieben", "seven")]


@pytest.fixture
def data(tmp_path) -> config.FileData:
    """Real pairs, of which the last two are held out, and a file of synthetic ones."""
    for split, pairs in (("train", REAL[:3]), ("val", [("acht", "eight")]), ("test", REAL[4:])):
        (tmp_path / f"{split}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs), "utf-8")
    made = "".join(
        json.dumps({"source": source, "target": target, "score": -0.5}) + "\n"
        for source, target in [*MADE, ("anderes", "Five")]
    )
    (tmp_path / "made.jsonl").write_text(made)
    files = {split: str(tmp_path / f"{split}.tsv") for split in ("train", "val", "test")}
    return config.FileData(**files)


def mixed(data: config.FileData, tmp_path: Path, real: int = 1, **entry) -> corpus.Corpus:
    entry = {"file": str(tmp_path / "made.jsonl"), **entry}
    table = data.model_dump() | {"repeat": real, "synthetic": [entry]}
    return corpus.load(config.FileData.model_validate(table))


def test_real_and_synthetic_pairs_are_mixed_as_often_as_asked(data, tmp_path):
    kept = [MADE[0], MADE[2]]
    for repeat in (0, 1, 3):
        for made in (1, 2):
            found = mixed(data, tmp_path, repeat, repeat=made)
            assert found["train"] == REAL[:3] * repeat + kept * made
            assert found["val"], found["test"] == ([("acht", "eight")], REAL[4:])
    assert found.messages == (
        "train: 3 real pairs, 3 times",
        "train: 2 synthetic pairs, 2 times; 2 left out, which have a sentence of the validation or test set",
    )


def test_sentences_of_validation_and_test_are_left_out_if_only_train_is_read(data, tmp_path):
    entry = SyntheticPairs(file=str(tmp_path / "made.jsonl"))
    data = data.model_copy(update={"synthetic": (entry,)})
    assert corpus.load(data, ("train",))["train"] == [*REAL[:3], MADE[0], MADE[2]]
    assert corpus.load_split(data, "test") == REAL[4:]
    (tmp_path / "made.jsonl").unlink()
    assert corpus.load_split(data, "val") == [("acht", "eight")]  # nothing of train is needed
    with pytest.raises(UserError, match=r"data\.synthetic\.0: .*made\.jsonl"):
        corpus.load(data)


def test_a_tag_is_one_token_that_training_alone_has(data, tmp_path):
    found = mixed(data, tmp_path, tag=True)
    assert found.symbols == (TAG,)
    assert found["train"][-1] == (f"{TAG} sieben", "seven")
    for table in (config.Bpe(vocab_size=300), config.Words(min_frequency=1), config.Characters()):
        tokenizers = TokenizerPair.train(table, found["train"], found.symbols)
        [tag, *ids] = tokenizers.source.encode(f"{TAG} sieben")
        assert tokenizers.source.vocab[tag] == TAG
        assert ids == tokenizers.source.encode("sieben")
        assert not any(">" in piece or "BT" in piece for piece in tokenizers.source.pieces[256:])


def test_every_pair_may_not_be_held_out(data, tmp_path):
    (tmp_path / "made.jsonl").write_text('{"source": "acht", "target": "8"}\n')
    with pytest.raises(UserError, match=r"synthetic\.0: every pair of .* is in the validation or"):
        mixed(data, tmp_path)


def test_swapped_sides_are_the_other_direction(data):
    swapped = corpus.load(data.model_copy(update={"swap": True}))
    straight = corpus.load(data)
    for split in straight.splits:
        assert swapped[split] == [(target, source) for source, target in straight[split]]


def test_pairs_that_are_not_translated_yet_are_an_error(data):
    entry = SyntheticPairs(**{"from": "case", "monolingual": "train"})
    data = data.model_copy(update={"synthetic": (entry,)})
    with pytest.raises(UserError, match="that case makes of train are not there: `regard train`"):
        corpus.load(data)


# --- monolingual text -----------------------------------------------------------------------------


def test_text_is_a_file_a_corpus_or_the_training_pairs(data, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("one\n\ntwo\n")
    assert load_sentences(str(tmp_path / "text.txt"), None, None) == ["one", "two"]
    sides = {True: ["one", "two"], False: ["eins", "zwei"]}
    for reverse, expected in sides.items():
        recipe = {"from": "case", "monolingual": "train", "reverse": reverse}
        assert load_monolingual(SyntheticPairs(**recipe), data, REAL[:2]) == expected
    texts = {"train": ["a"], "val": ["b"]}
    monkeypatch.setattr("regard.text.datasets.load_monolingual", lambda *names: texts)
    public = config.DatasetData(source="de", target="en")
    assert languages(public) == ("de", "en")
    assert languages(public.model_copy(update={"swap": True})) == ("en", "de")
    assert load_sentences("multi30k-captions", None, "de") == ["a"]


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        (
            "multi30k-caption",
            None,
            'no public corpus of that name. Did you mean "multi30k-captions"',
        ),
        ("multi30k-captions", None, "has the languages de, en: say which one"),
        ("{here}", "en", "language is for a public corpus"),
    ],
)
def test_text_that_is_not_there_gives_advice(name, language, message):
    with pytest.raises(UserError, match=message):
        load_sentences(name.format(here=__file__), language, "fr")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "give file, or from and monolingual"),
        ({"from": "case"}, "monolingual says which"),
        ({"file": "a.jsonl", "beam": 3}, "beam is about translating"),
        ({"from": "case", "monolingual": "train", "beam": 2, "sample": True}, "choose either beam"),
        ({"from": "case", "monolingual": "train", "top_k": 3}, "top_k is about sampling"),
        ({"file": "a.jsonl", "form": "case"}, 'Did you mean "from"'),
    ],
)
def test_a_wrong_entry_gives_advice(entry, message):
    with pytest.raises(UserError, match=f"data.synthetic.0.*{message}"):
        presets.resolve({"base": "multi30k-transformer", "data.synthetic": [entry]})
    with pytest.raises(UserError, match="there are none: add some"):
        presets.resolve({"base": "multi30k-transformer", "data.repeat": 0})


def test_a_file_of_pairs_takes_no_setting_of_a_translation():
    assert set(Recipe.model_fields) < set(RECIPE)
    own = {"file", "from", "repeat", "tag"}
    assert set(SyntheticPairs.model_fields) == set(RECIPE) | own
