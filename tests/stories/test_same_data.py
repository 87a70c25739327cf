"""A resumed run must have the data it started with."""

import pytest

from regard import presets
from regard.errors import UserError
from regard.terminal import Console
from regard.training import train


def test_changed_data_raises_an_error(tmp_path):
    sides = {side: tmp_path / f"train.{side}" for side in ("a", "b")}
    for side in sides.values():
        side.write_text("one two\ntwo one\n" * 8)
    table = {
        "data": {
            "kind": "files",
            "train": list(map(str, sides.values())),
            "val": list(map(str, sides.values())),
        },
        "model": {"embedding_dim": 3, "hidden_dim": 5, "attention": {"kq_dim": 7}},
        "training": {"epochs": 2, "validate_every": 1, "batch_sentences": 8},
    }
    config, run = presets.validate(table, "test"), tmp_path / "run"
    quiet = Console(quiet=True)
    train(config, run, "cpu", resume=False, console=quiet)
    train(config, run, "cpu", resume=True, console=quiet)
    sides["a"].write_text("one two\ntwo two\n" * 8)
    with pytest.raises(
        UserError, match=r"data has changed since .* was started \(splits train, val\)"
    ):
        train(config, run, "cpu", resume=True, console=quiet)
