"""Sentences that a text shares with what a model is tested on are counted, and can be left out."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from regard import config, presets
from regard.errors import UserError
from regard.text import corpus, datasets
from regard.text.overlap import learned, overlap

CAPTIONS = {"kind": "text", "name": "multi30k-captions", "language": ["en", "de"]}


def data(**choices: Any) -> Any:
    return presets.validate({"data": choices}, "test").data


@pytest.fixture
def public(tmp_path: Path, monkeypatch) -> None:
    """Captions and translations of three sentences a file; one of the test's is a caption, too."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    for name in ("multi30k", "multi30k-captions"):
        dataset = datasets.DATASETS[name]
        (tmp_path / dataset.folder).mkdir()
        for file in dataset.needs(["en", "de", "fr"]):
            lines = [f"{name} {file}, sentence {n}." for n in range(3)]
            if file == "train.4.en.gz":
                lines[1] = "a DOG runs !"
            if file == "test_2016_flickr.en.gz":
                lines[2] = "A dog runs."
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / dataset.folder / file).write_bytes(gzip.compress(text.encode()))


def test_languages_one_after_the_other(public):
    both = corpus.load(data(**CAPTIONS))
    sides = [corpus.load(data(**CAPTIONS | {"language": each})) for each in ("en", "de")]
    for split in ("train", "val"):
        assert both[split] == sides[0][split] + sides[1][split]
    assert len(both["train"]) == 2 * 5 * 3


def test_what_is_shared_is_counted_by_side(public):
    text = learned(data(**CAPTIONS))
    pairs = corpus.load(data(kind="dataset", name="multi30k", source="de", target="en"))
    assert overlap(text, pairs["test"]) == {"source": 0, "target": 1}
    assert overlap(text, pairs["val"]) == {"source": 0, "target": 0}
    spoiled = learned(data(**CAPTIONS, noise={"mask_ratio": 0.5}))
    assert spoiled == text


def test_a_text_to_write_has_no_source_to_be_found(public):
    text = learned(data(**CAPTIONS))
    val = corpus.load(data(**CAPTIONS | {"language": "en"}))["train"]
    assert overlap(text, val) == {"source": 0, "target": 15}


def test_what_is_shared_can_be_left_out(public):
    wanted = data(**CAPTIONS, exclude=[{"name": "multi30k"}])
    found = corpus.load(wanted)
    assert ("", "a DOG runs !") not in found["train"]
    assert len(found["train"]) == 29
    told = "train: left out 1 of 30 sentences, which are in multi30k (val, test)"
    assert found.told == (told,)
    pairs = corpus.load(data(kind="dataset", name="multi30k", source="de", target="en"))
    assert overlap(learned(wanted), pairs["test"]) == {"source": 0, "target": 0}
    val = corpus.load(data(**CAPTIONS, exclude=[{"name": "multi30k", "splits": ["val"]}]))
    assert len(val["train"]) == 30


def test_leaving_out_what_cannot_be_compared_or_everything_is_refused(public, tmp_path):
    with pytest.raises(
        UserError, match=r"tatoeba-fr-en has fr, en, and data.language says de: there"
    ):
        corpus.load(data(**CAPTIONS | {"language": "de"}, exclude=[{"name": "tatoeba-fr-en"}]))
    own = tmp_path / "own.txt"
    own.write_text("a dog... runs\n", "utf-8")
    choices = {"kind": "text", "train": str(own), "val": str(own)}
    with pytest.raises(UserError, match="every training sentence is in multi30k"):
        corpus.load(data(**choices, exclude=[{"name": "multi30k", "splits": ["test"]}]))
    with pytest.raises(UserError, match=r"data.language names no language"):
        data(**CAPTIONS | {"language": []})


@pytest.mark.skipif(not os.environ.get("REGARD_DATA"), reason="needs the real corpora: REGARD_DATA")
def test_the_captions_and_multi30k():
    """Of the real text, val and test are kept out; of train's English side, all but one is in."""
    own = presets.load("captions-lm").data
    for name in ("captions-denoising", "captions-denoising-decoder-only"):
        assert presets.load(name).data.model_copy(update={"noise": None}) == own
    text = learned(own)
    pairs = corpus.load(config.DatasetData(name="multi30k", source="de", target="en"))
    found = {split: overlap(text, pairs[split]) for split in ("train", "val", "test")}
    assert found["train"]["target"] == 28_999
    assert (found["val"], found["test"]) == (2 * ({"source": 0, "target": 0},))
