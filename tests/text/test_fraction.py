"""A fraction of the training text: deterministic, a smaller one a subset of a larger one."""

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
def example_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("".join(f"source {n}\ttarget {n}\n" for n in range(97)), "utf-8")


def load(kind: str, fraction: float) -> Corpus:
    return corpus.load(
        presets.validate({"data": KINDS[kind] | {"fraction": fraction}}, "test").data
    )


@pytest.mark.parametrize("kind", KINDS)
def test_fractions_are_nested_and_apply_to_training_only(kind):
    full, half, tenth, minimum = (load(kind, fraction) for fraction in (1, 0.5, 0.1, 1e-9))
    assert [len(data["train"]) for data in (full, half, tenth, minimum)] == [97, 48, 10, 1]
    assert set(minimum["train"]) < set(tenth["train"]) < set(half["train"]) < set(full["train"])
    rows = [full["train"].index(pair) for pair in half["train"]]
    assert rows == sorted(rows)
    assert max(rows) > 60  # drawn from everywhere, not the first half
    assert half["val"] == full["val"]
    assert full.messages == ()
    noun = "sentences" if kind == "text" else "pairs"
    assert tenth.messages == (f"train: 10 of 97 {noun} (data.fraction is 0.1)",)


def test_selected_rows_are_the_same_in_every_version():
    assert corpus.select_rows(97, 7) == [29, 47, 55, 66, 71, 72, 90]


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01])
def test_a_fraction_is_above_0_and_at_most_1(fraction):
    with pytest.raises(UserError, match=r"data.fraction: got .* it should be (greater|less) than"):
        presets.load("case", [f"data.fraction={fraction}"])
