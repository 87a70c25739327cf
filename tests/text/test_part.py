"""A share of the training text: the same for everyone, a smaller one within a larger one."""

from pathlib import Path
from typing import Any

import pytest

from regard import presets
from regard.errors import UserError
from regard.text import corpus
from regard.text.corpus import Corpus

KINDS: dict[str, dict[str, Any]] = {
    "task": {
        "kind": "synthetic",
        "name": "copy",
        "train": 97,
        "val": 2,
        "test": 2,
        "max_length": 11,
    },
    "files": {"kind": "files", "train": "a.tsv", "val": "a.tsv"},
    "text": {"kind": "text", "train": "a.tsv", "val": "a.tsv"},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("".join(f"source {n}\ttarget {n}\n" for n in range(97)), "utf-8")


def load(kind: str, share: float) -> Corpus:
    return corpus.load(presets.validate({"data": KINDS[kind] | {"fraction": share}}, "test").data)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_lie_within_each_other_and_only_training_is_cut(kind):
    whole, half, tenth, least = (load(kind, share) for share in (1, 0.5, 0.1, 1e-9))
    assert [len(data["train"]) for data in (whole, half, tenth, least)] == [97, 48, 10, 1]
    assert set(least["train"]) < set(tenth["train"]) < set(half["train"]) < set(whole["train"])
    places = [whole["train"].index(pair) for pair in half["train"]]
    assert places == sorted(places)
    assert max(places) > 60  # drawn from everywhere, not the first half
    assert half["val"] == whole["val"]
    assert whole.told == ()
    noun = "sentences" if kind == "text" else "pairs"
    assert tenth.told == (f"train: 10 of 97 {noun} (data.fraction is 0.1)",)


def test_which_rows_does_not_change_from_one_version_to_the_next():
    assert corpus.first_of(97, 7) == [29, 47, 55, 66, 71, 72, 90]


@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(UserError, match=r"data.fraction: got .* it should be (greater|less) than"):
        presets.load("case", [f"data.fraction={share}"])
