"""Sentences that training text shares with a test set are counted, and can be excluded."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus, datasets
from regard.text.overlap import count_overlap, training_sentences

CAPTIONS = {"kind": "text", "name": "multi30k-captions", "language": ["en", "de"]}


def data(**options: Any) -> Any:
    return presets.validate({"data": options}, "test").data


@pytest.fixture
def public_data(tmp_path: Path, monkeypatch) -> None:
    """Captions and translations, three sentences per file; one test sentence is also a caption."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    for name in ("multi30k", "multi30k-captions"):
        dataset = datasets.DATASETS[name]
        (tmp_path / dataset.folder).mkdir()
        for file in dataset.files_for(["en", "de", "fr"]):
            lines = [f"{name} {file}, sentence {n}." for n in range(3)]
            if file == "train.4.en.gz":
                lines[1] = "a DOG runs !"
            if file == "test_2016_flickr.en.gz":
                lines[2] = "A dog runs."
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / dataset.folder / file).write_bytes(gzip.compress(text.encode()))


def test_languages_are_concatenated(public_data):
    both = corpus.load(data(**CAPTIONS))
    sides = [corpus.load(data(**CAPTIONS | {"language": each})) for each in ("en", "de")]
    for split in ("train", "val"):
        assert both[split] == sides[0][split] + sides[1][split]
    assert len(both["train"]) == 2 * 5 * 3


def test_overlap_is_counted_by_side(public_data):
    sentences = training_sentences(data(**CAPTIONS))
    pairs = corpus.load(data(kind="dataset", name="multi30k", source="de", target="en"))
    assert count_overlap(sentences, pairs["test"]) == {"source": 0, "target": 1}
    assert count_overlap(sentences, pairs["val"]) == {"source": 0, "target": 0}
    assert training_sentences(data(**CAPTIONS, noise={"mask_ratio": 0.5})) == sentences


def test_empty_sources_do_not_overlap(public_data):
    sentences = training_sentences(data(**CAPTIONS))
    english = corpus.load(data(**CAPTIONS | {"language": "en"}))["train"]
    assert count_overlap(sentences, english) == {"source": 0, "target": 15}


def test_overlapping_sentences_can_be_excluded(public_data):
    table = data(**CAPTIONS, exclude=[{"name": "multi30k"}])
    captions = corpus.load(table)
    assert ("", "a DOG runs !") not in captions["train"]
    assert len(captions["train"]) == 29
    message = "train: excluded 1 of 30 sentences, which occur in multi30k (val, test)"
    assert captions.messages == (message,)
    pairs = corpus.load(data(kind="dataset", name="multi30k", source="de", target="en"))
    assert count_overlap(training_sentences(table), pairs["test"]) == {"source": 0, "target": 0}
    val = corpus.load(data(**CAPTIONS, exclude=[{"name": "multi30k", "splits": ["val"]}]))
    assert len(val["train"]) == 30


def test_excluding_without_a_common_language_or_excluding_everything_is_rejected(
    public_data, tmp_path
):
    with pytest.raises(
        UserError,
        match=r"tatoeba-fr-en has the languages fr, en, and data.language is de: they have none",
    ):
        corpus.load(data(**CAPTIONS | {"language": "de"}, exclude=[{"name": "tatoeba-fr-en"}]))
    file = tmp_path / "text.txt"
    file.write_text("a dog... runs\n", "utf-8")
    options = {"kind": "text", "train": str(file), "val": str(file)}
    with pytest.raises(UserError, match="every training sentence is in multi30k"):
        corpus.load(data(**options, exclude=[{"name": "multi30k", "splits": ["test"]}]))
    with pytest.raises(UserError, match=r"data.language is an empty list"):
        data(**CAPTIONS | {"language": []})


@pytest.mark.skipif(not os.environ.get("REGARD_DATA"), reason="needs the real corpora: REGARD_DATA")
def test_captions_contain_multi30k_train_but_not_val_or_test():
    """In the real data: all but one of the English training sentences."""
    captions = presets.load("captions-lm").data
    for name in ("captions-denoising", "captions-denoising-decoder-only"):
        assert presets.load(name).data.model_copy(update={"noise": None}) == captions
    sentences = training_sentences(captions)
    pairs = corpus.load(config.DatasetData(name="multi30k", source="de", target="en"))
    overlap = {split: count_overlap(sentences, pairs[split]) for split in ("train", "val", "test")}
    assert overlap["train"]["target"] == 28_999
    assert (overlap["val"], overlap["test"]) == (2 * ({"source": 0, "target": 0},))
