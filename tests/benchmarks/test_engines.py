"""The benchmark of engines at a tiny size, through the command line."""

import json

from typer.testing import CliRunner

from regard.cli import app
from tests.export.conftest import make_run  # noqa: F401


def test_engines_tiny(make_run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    tokenizer = {"kind": "bpe", "vocab_size": 300, "joint": True}
    run = make_run(model={"kind": "transformer", "d_model": 12, "d_ff": 17}, tokenizer=tokenizer)
    options = ["--rounds", "1", "--sentences", "3", "--beam", "1,2", "--shortlist", "2", "--json"]
    result = CliRunner().invoke(app, ["bench", "engines", str(run), *options])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    contenders = [("ctranslate2", "int8"), ("ctranslate2, shortlist", "int8")]
    contenders += [("ctranslate2", "float32"), ("pytorch", "float32")]
    assert [(row["task"], row["contender"], row["precision"]) for row in document["rows"]] == [
        (task, *contender) for task in ("greedy", "beam 2") for contender in contenders
    ]
    assert "BLEU: greedy ctranslate2 int8 " in document["about"]
