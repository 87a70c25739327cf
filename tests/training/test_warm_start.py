"""Warm start: weights are copied token by token; runs that do not fit are rejected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import Config
from regard.errors import RegardWarning, UserError
from regard.models import build
from regard.models.weights import read
from regard.text import corpus
from regard.text.tokenizer import TokenizerPair
from regard.training import loop
from regard.training.warm_start import SourceCheckpoint, check_model, shared_token_ids, token_ids

RARE_EXCLUDED = {"min_frequency": 11}  # so that the source lacks some characters


@pytest.fixture(scope="module")
def base(tiny: Any, fit: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """base(family, joint): a trained run to start from. Do not modify it."""
    folders: dict[tuple[str, bool], Path] = {}

    def get_run(family: str, joint: bool = True) -> Path:
        if (family, joint) not in folders:
            folders[family, joint] = tmp_path_factory.mktemp(family) / "base"
            config = tiny(family, tokenizer=RARE_EXCLUDED | {"joint": joint})
            fit(config, folders[family, joint])
        return folders[family, joint]

    return get_run


@pytest.fixture
def warm(tiny: Any) -> Callable[..., Config]:
    """warm(folder, family, ...): a config initialised from a run; the rest goes to `tiny`."""

    def make_config(folder: Path, family: str = "recurrent", **rest: Any) -> Config:
        return tiny(family, init=str(folder), **rest)

    return make_config


def rows_by_token(tensor: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(names, tensor, strict=True))


@pytest.mark.parametrize("joint", [True, False])
def test_rows_are_copied_by_token_and_other_weights_by_name(base, warm, family, joint, tmp_path):
    case = {"name": "case", "train": 61}  # has symbols, and characters in another order
    config = warm(base(family, joint), family, data=case, tokenizer={"joint": joint})
    data = corpus.load(config.data)
    new = TokenizerPair.train(config.tokenizer, data["train"], data.symbols)
    sizes = (new.source.vocab_size, new.target.vocab_size, joint)
    torch.manual_seed(3)
    initial = build(config.model, *sizes)
    torch.manual_seed(3)
    model = build(config.model, *sizes)
    source = SourceCheckpoint.load(config, tmp_path / "run")
    warm_start = source.warm_start(model, new, data)
    old = source.translator.model
    counts: dict[str, int] = {}
    for side in ("source", "target"):
        old_vocab, new_vocab = (getattr(pair, side).vocab for pair in (source.tokenizers, new))
        counts[side] = len(set(old_vocab) & set(new_vocab))
        assert 4 < counts[side] < len(new_vocab)
        tables = zip(*(m.vocab_parameters()[side] for m in (old, model, initial)), strict=True)
        for old_table, table, initial_table in tables:
            before = rows_by_token(old_table, old_vocab)
            after, random = (rows_by_token(t, new_vocab) for t in (table, initial_table))
            for token in new_vocab:
                assert torch.equal(after[token], before.get(token, random[token])), token
    by_token = {id(p) for side in model.vocab_parameters().values() for p in side}
    old_parameters = dict(old.named_parameters())
    others = {name: p for name, p in model.named_parameters() if id(p) not in by_token}
    assert others
    assert all(torch.equal(p, old_parameters[name]) for name, p in others.items())
    pieces = warm_start.record["pieces"]
    assert set(pieces) == ({"joint"} if joint else {"source", "target"})
    for side, recorded in pieces.items():
        size = new.target.vocab_size if side != "source" else new.source.vocab_size
        copied = counts["source" if side == "source" else "target"]
        assert recorded == {"copied": copied, "new": size - copied}
        noun = "token embeddings" if joint else f"{side} token embeddings"
        line = f"{copied} of {size} {noun} are copied from {source.name}, {size - copied} are newly"
        assert any(message.startswith(line) for message in warm_start.messages)


def test_special_token_differs_from_a_word_of_the_same_spelling():
    def make_tokenizer(pieces: list[str], symbols: list[str]) -> Any:
        from regard.text.tokenizer import WordTokenizer

        return WordTokenizer(pieces, symbols, lowercase=False, strict=False)

    old = make_tokenizer(["a", "<U>", "<pad>"], [])
    new = make_tokenizer(["b", "a"], ["<U>"])
    old_ids, new_ids = shared_token_ids(old, new)
    assert [old.vocab[i] for i in old_ids] == ["<pad>", "<begin>", "<end>", "<unk>", "a"]
    assert (old_ids, new_ids) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 6])
    assert len(token_ids(old)) == old.vocab_size


def test_learning_rate_near_zero_keeps_the_source_weights(base, warm, fit, family, tmp_path):
    config = warm(base(family), family, tokenizer=RARE_EXCLUDED, learning_rate=1e-30, epochs=0.1)
    output = fit(config, tmp_path / "run")
    (before, _), (after, _) = (
        read(folder / "model.safetensors") for folder in (base(family), tmp_path / "run")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert ", 0 are newly initialised" in output


def test_vocabulary_is_reused(base, warm, fit, tmp_path):
    config = warm(base("recurrent"), tokenizer={"reuse": True, "max_tokens": 19}, epochs=0.1)
    output = fit(config, tmp_path / "run")
    new, old = (
        TokenizerPair.load(f / "tokenizer.json") for f in (tmp_path / "run", base("recurrent"))
    )
    assert new.target.vocab == old.target.vocab
    assert (new.max_tokens, old.max_tokens) == (19, 256)
    size = new.target.vocab_size
    assert f"{size} of {size} token embeddings are copied" in output


class Killed(BaseException):
    pass


def test_resume_does_not_need_the_source(base, warm, fit, same_run, family, tmp_path, monkeypatch):
    shutil.copytree(base(family), tmp_path / "base")
    config = warm(tmp_path / "base", family)
    fit(config, tmp_path / "uninterrupted")
    calls = iter(range(9))
    original = loop.TrainingLoop.validate

    def validate(self: loop.TrainingLoop, is_last: bool) -> None:
        original(self, is_last)
        if next(calls) == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "validate", validate)
        with pytest.raises(Killed):
            fit(config, tmp_path / "killed")
    shutil.rmtree(tmp_path / "base")
    fit(config, tmp_path / "killed", resume=True)
    same_run(tmp_path / "uninterrupted", tmp_path / "killed")
    cards = [
        json.loads((tmp_path / name / "card.json").read_text())
        for name in ("uninterrupted", "killed")
    ]
    assert cards[0]["init"] == cards[1]["init"]
    assert cards[0]["init"]["run"] == str(tmp_path / "base")
    assert cards[0]["init"]["training_seconds"] > 0


def test_overlap_of_the_source_data_with_val_and_test(base, warm, fit, tmp_path, monkeypatch):
    other_seed = {"seed": 2}
    output = fit(warm(base("recurrent"), data=other_seed, epochs=0.1), tmp_path / "run")
    card = json.loads((tmp_path / "run" / "card.json").read_text())["init"]["overlap"]
    assert set(card) == {"val", "test"}
    train = corpus.load(warm(base("recurrent")).data)["train"]
    old_texts = {text for pair in train for text in pair}
    new = corpus.load(warm(base("recurrent"), data=other_seed).data)
    for split in card:
        for number, side in enumerate(("source", "target")):
            exact = sum(pair[number] in old_texts for pair in new[split])
            assert card[split][side] >= exact
    counts = card["val"]
    assert f"{counts['source']} sources and {counts['target']} targets of val" in output
    shutil.copytree(base("recurrent"), tmp_path / "moved")
    before, _, after = (base("recurrent") / "config.toml").read_text().partition("[data]")
    table = '[data]\nkind = "files"\ntrain = "missing.tsv"\nval = "missing.tsv"\n'
    rest = after.partition("\n[")[2]
    (tmp_path / "moved" / "config.toml").write_text(before + table + "\n[" + rest)
    with pytest.warns(RegardWarning, match=r"moved/config\.toml has changed since the weights"):
        output = fit(warm(tmp_path / "moved", epochs=0.1), tmp_path / "unknown")
    assert "is not available: its overlap with the held-out splits is unknown" in output
    assert json.loads((tmp_path / "unknown" / "card.json").read_text())["init"]["overlap"] is None


# --- runs that do not fit are rejected before anything is written ----------------------------------


def change_model(config: Config, **model: Any) -> Config:
    table = config.model_dump()
    table["model"] |= model
    return Config.model_validate(table)


MISMATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "d_model": ("transformer", {"d_model": 8}, r"model.d_model: saved 6, given 8\)"),
    "heads, with equal shapes": (
        "transformer",
        {"attention": {"heads": 3}},
        r"model.attention.heads: saved 2, given 3",
    ),
    "positions, without weights": (
        "transformer",
        {"position": {"kind": "none"}},
        r"model.position.kind: saved sinusoidal, given none",
    ),
    "layers": (
        "decoder-only",
        {"decoder": {"layers": 2}},
        r"model.decoder.layers: saved 1, given 2",
    ),
    "mixer": (
        "decoder-only",
        {"mixer": {"kind": "state-space"}, "attention": {}},
        r"model.mixer.kind: saved attention, given state-space",
    ),
    "cell": ("recurrent", {"cell": "rnn"}, r"model.cell: saved gru, given rnn"),
}


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_another_architecture_is_rejected(base, warm, fit, tmp_path, mismatch):
    family, model, message = MISMATCHES[mismatch]
    config = change_model(warm(base(family), family), **model)
    with pytest.raises(UserError, match=rf"do not fit this model \(.*{message}.*same \[model\]"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_kind_is_the_only_difference_named(base, warm, fit, tmp_path):
    with pytest.raises(UserError, match=r"\(model.kind: saved recurrent, given transformer\)"):
        fit(warm(base("recurrent"), "transformer"), tmp_path / "run")


def test_settings_without_weights_may_differ():
    """So a trained model can continue with a longer context, or as a prefix LM."""
    model = {"kind": "decoder-only", "position": {"kind": "rotary"}}
    longer = {"kind": "rotary", "scaling": "dynamic-ntk", "original_length": 16}
    old, new = (
        Config.model_validate({"model": table})
        for table in (model, model | {"position": longer, "attention_mask": "prefix"})
    )
    check_model(old, new, "a run")
    other = Config.model_validate({"model": model | {"position": {"kind": "alibi"}}})
    with pytest.raises(UserError, match="do not fit this model"):
        check_model(old, other, "a run")


def test_dropout_may_differ(base, warm, fit, tmp_path):
    config = warm(base("recurrent"), epochs=0.1)
    fit(change_model(config, dropout=0.5, embedding_std=0.1), tmp_path / "run")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"kind": "words"}, "tokenizer.kind is characters in .* and words here.*kind=characters"),
        ({"lowercase": True}, "tokenizer.lowercase is false in .* and true here.*lowercase=false"),
        ({"joint": False}, "tokenizer.joint is true in .* and false here.*joint=true"),
    ],
)
def test_another_kind_of_tokenizer_is_rejected(base, warm, fit, tmp_path, tokenizer, message):
    with pytest.raises(UserError, match=message):
        fit(warm(base("recurrent"), tokenizer=tokenizer), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_reuse_excludes_vocabulary_settings(base, warm, fit, tmp_path):
    config = warm(base("recurrent"), tokenizer={"reuse": True, "min_frequency": 3}, epochs=0.1)
    message = (
        r"tokenizer\.min_frequency is 3 here, but tokenizer\.reuse takes the vocab.*built with 1"
    )
    with pytest.raises(UserError, match=message):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unfinished_source_is_reported(base, warm, tmp_path):
    finished, unfinished = tmp_path / "finished", tmp_path / "unfinished"
    for folder in (finished, unfinished):
        shutil.copytree(base("recurrent"), folder)
    (unfinished / "card.json").unlink()
    for folder in (finished, unfinished):
        source = SourceCheckpoint.load(warm(folder), tmp_path / "run")
        data = corpus.load(source.translator.config.data)
        messages = source.warm_start(source.translator.model, source.tokenizers, data).messages
        reported = any("is not finished: its best weights so far are used" in m for m in messages)
        assert reported == (folder == unfinished)


def test_language_model_has_no_source_vocabulary_to_reuse(base, warm, fit, tmp_path):
    shutil.copytree(base("recurrent", False), tmp_path / "base")
    file = tmp_path / "base" / "config.toml"
    (tmp_path / "a.txt").write_text("text")
    before, _, rest = file.read_text().partition("[data]")
    table = f'[data]\nkind = "text"\ntrain = "{tmp_path}/a.txt"\nval = "{tmp_path}/a.txt"\n'
    file.write_text(before + table + "\n[" + rest.partition("\n[")[2])
    config = warm(tmp_path / "base", tokenizer={"joint": False, "reuse": True})
    message = "is a language model without a source vocabulary to reuse"
    with pytest.warns(RegardWarning), pytest.raises(UserError, match=message):
        fit(config, tmp_path / "run")


def test_missing_damaged_or_untrained_source(base, warm, fit, tmp_path):
    with pytest.raises(UserError, match=r"^init: there is no run folder .*none$"):
        fit(warm(tmp_path / "none"), tmp_path / "run")
    with pytest.raises(
        UserError, match=r"; case is a preset: train it with `regard train case`.*--init runs/case`"
    ):
        fit(warm(Path("case")), tmp_path / "run")
    with pytest.raises(
        UserError,
        match=r"folder runs/case: train it first with `regard train case --run runs/case`$",
    ):
        fit(warm(Path("runs/case")), tmp_path / "run")
    with pytest.raises(UserError, match=r'folder captions-ml\. Did you mean "captions-lm"\?$'):
        fit(warm(Path("captions-ml")), tmp_path / "run")
    shutil.copytree(base("recurrent"), tmp_path / "base")
    with pytest.raises(UserError, match=r'folder .*bsae\. Did you mean "base"\?$'):
        fit(warm(tmp_path / "bsae"), tmp_path / "run")
    (tmp_path / "base" / "card.json").write_text("{")
    with pytest.raises(UserError, match=r"card\.json is damaged: .* delete it and run"):
        fit(warm(tmp_path / "base"), tmp_path / "run")
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="contains no trained model yet"):
        fit(warm(tmp_path / "base"), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"tokenizer.reuse takes the vocabulary of the run in init"
    ):
        Config.model_validate({"tokenizer": {"reuse": True}})
