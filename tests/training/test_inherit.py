"""A run that starts from another: token by token, and never by mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import Config
from regard.errors import UserError
from regard.models import build
from regard.models.weights import read
from regard.text import corpus
from regard.text.tokenizer import TokenizerPair
from regard.training import loop
from regard.training.inherit import Ancestor, ids, shared

FEW = {"min_frequency": 11}  # so that the ancestor lacks some characters


@pytest.fixture(scope="module")
def base(tiny: Any, fit: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """base(family, joint): a trained run to start from. Not to be changed."""
    made: dict[tuple[str, bool], Path] = {}

    def get(family: str, joint: bool = True) -> Path:
        if (family, joint) not in made:
            made[family, joint] = tmp_path_factory.mktemp(family) / "base"
            fit(tiny(family, tokenizer=FEW | {"joint": joint}), made[family, joint])
        return made[family, joint]

    return get


@pytest.fixture
def heir(tiny: Any) -> Callable[..., Config]:
    """heir(folder, family, ...): a config that starts from a run; more goes to `tiny`."""

    def make(folder: Path, family: str = "recurrent", **rest: Any) -> Config:
        return tiny(family, init=str(folder), **rest)

    return make


def tokens(tensor: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    return dict(zip(names, tensor, strict=True))


@pytest.mark.parametrize("joint", [True, False])
def test_rows_follow_their_tokens_and_all_else_is_taken_over(base, heir, family, joint, tmp_path):
    case = {"name": "case", "train": 61}  # has symbols, and characters in another order
    config = heir(base(family, joint), family, data=case, tokenizer={"joint": joint})
    data = corpus.load(config.data)
    new = TokenizerPair.train(config.tokenizer, data["train"], data.symbols)
    sizes = (new.source.vocab_size, new.target.vocab_size, joint)
    torch.manual_seed(3)
    fresh = build(config.model, *sizes)
    torch.manual_seed(3)
    model = build(config.model, *sizes)
    ancestor = Ancestor.of(config, tmp_path / "run")
    origin = ancestor.give(model, new, data)
    old = ancestor.run.model
    counts: dict[str, int] = {}
    for side in ("source", "target"):
        theirs, ours = (getattr(pair, side).vocab for pair in (ancestor.tokenizers, new))
        counts[side] = len(set(theirs) & set(ours))
        assert 4 < counts[side] < len(ours)
        triples = zip(*(m.vocab_parameters()[side] for m in (old, model, fresh)), strict=True)
        for one, two, three in triples:
            before, now, first = tokens(one, theirs), tokens(two, ours), tokens(three, ours)
            for name in ours:
                assert torch.equal(now[name], before.get(name, first[name])), name
    rowwise = {id(p) for side in model.vocab_parameters().values() for p in side}
    known = dict(old.named_parameters())
    others = {name: p for name, p in model.named_parameters() if id(p) not in rowwise}
    assert others
    assert all(torch.equal(p, known[name]) for name, p in others.items())
    pieces = origin.record["pieces"]
    assert set(pieces) == ({"joint"} if joint else {"source", "target"})
    for side, found in pieces.items():
        size = new.target.vocab_size if side != "source" else new.source.vocab_size
        kept = counts["source" if side == "source" else "target"]
        assert found == {"kept": kept, "fresh": size - kept}
        which = "pieces" if joint else f"{side} pieces"
        line = f"{kept} of {size} {which} come from {ancestor.name}, {size - kept} start fresh"
        assert line in origin.told


def test_a_symbol_is_no_piece_of_the_same_spelling():
    def words(pieces: list[str], symbols: list[str]) -> Any:
        from regard.text.tokenizer import WordTokenizer

        return WordTokenizer(pieces, symbols, lowercase=False, strict=False)

    old, new = words(["a", "<U>", "<pad>"], []), words(["b", "a"], ["<U>"])
    known, here = shared(old, new)
    assert [old.vocab[i] for i in known] == ["<pad>", "<begin>", "<end>", "<unk>", "a"]
    assert (known, here) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 6])
    assert len(ids(old)) == old.vocab_size


def test_a_run_that_learns_nothing_is_its_ancestor_bit_for_bit(base, heir, fit, family, tmp_path):
    still = heir(base(family), family, tokenizer=FEW, learning_rate=1e-30, epochs=0.1)
    said = fit(still, tmp_path / "run")
    (before, _), (after, _) = (
        read(folder / "model.safetensors") for folder in (base(family), tmp_path / "run")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "0 start fresh" in said


def test_the_vocabulary_can_be_reused_whole(base, heir, fit, tmp_path):
    config = heir(base("recurrent"), tokenizer={"reuse": True, "max_tokens": 19}, epochs=0.1)
    said = fit(config, tmp_path / "run")
    mine, theirs = (
        TokenizerPair.load(f / "tokenizer.json") for f in (tmp_path / "run", base("recurrent"))
    )
    assert mine.target.vocab == theirs.target.vocab
    assert (mine.max_tokens, theirs.max_tokens) == (19, 256)
    assert f"{mine.target.vocab_size} of {mine.target.vocab_size} pieces come" in said


class Killed(BaseException):
    pass


def test_a_resumed_run_needs_its_ancestor_no_more(
    base, heir, fit, same_run, family, tmp_path, monkeypatch
):
    shutil.copytree(base(family), tmp_path / "base")
    config = heir(tmp_path / "base", family)
    fit(config, tmp_path / "whole")
    looks = iter(range(9))
    original = loop.Loop.look

    def look(self: loop.Loop, over: bool) -> None:
        original(self, over)
        if next(looks) == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "look", look)
        with pytest.raises(Killed):
            fit(config, tmp_path / "killed")
    shutil.rmtree(tmp_path / "base")
    fit(config, tmp_path / "killed", resume=True)
    same_run(tmp_path / "whole", tmp_path / "killed")
    cards = [
        json.loads((tmp_path / name / "card.json").read_text()) for name in ("whole", "killed")
    ]
    assert cards[0]["init"] == cards[1]["init"]
    assert cards[0]["init"]["run"] == str(tmp_path / "base")
    assert cards[0]["init"]["training_seconds"] > 0


def test_what_the_ancestor_learned_from_is_looked_for_in_val_and_test(
    base, heir, fit, tmp_path, monkeypatch
):
    # The ancestor's training text is this run's val, turned around: made tasks share no sentence.
    mine = {"seed": 2}
    honest = fit(heir(base("recurrent"), data=mine, epochs=0.1), tmp_path / "honest")
    card = json.loads((tmp_path / "honest" / "card.json").read_text())["init"]["overlap"]
    assert set(card) == {"val", "test"}
    theirs = {text for pair in corpus.load(heir(base("recurrent")).data)["train"] for text in pair}
    own = corpus.load(heir(base("recurrent"), data=mine).data)
    for split in card:
        for number, side in enumerate(("source", "target")):
            exact = sum(pair[number] in theirs for pair in own[split])
            assert card[split][side] >= exact
    counts = card["val"]
    assert f"{counts['source']} sources and {counts['target']} targets of val" in honest
    text = base("recurrent") / "config.toml"
    shutil.copytree(base("recurrent"), tmp_path / "moved")
    gone = text.read_text().replace('kind = "synthetic"', 'kind = "files"').split("[data]")
    table = '[data]\nkind = "files"\ntrain = "gone.tsv"\nval = "gone.tsv"\n'
    rest = gone[1].partition("\n[")[2]
    (tmp_path / "moved" / "config.toml").write_text(gone[0] + table + "\n[" + rest)
    said = fit(heir(tmp_path / "moved", epochs=0.1), tmp_path / "unknown")
    assert "learned from is not here: whether val and test are in it is not known" in said
    assert json.loads((tmp_path / "unknown" / "card.json").read_text())["init"]["overlap"] is None


# What does not fit is refused before anything is written.


def changed(config: Config, **model: Any) -> Config:
    table = config.model_dump()
    table["model"] |= model
    return Config.model_validate(table)


MISFITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "d_model": ("transformer", {"d_model": 8}, r"model.d_model: 6 there, 8 here\)"),
    "heads, though the shapes agree": (
        "transformer",
        {"attention": {"heads": 3}},
        r"model.attention.heads: 2 there, 3 here",
    ),
    "positions, which have no weights": (
        "transformer",
        {"position": {"kind": "none"}},
        r"model.position.kind: sinusoidal there, none here",
    ),
    "layers": (
        "decoder-only",
        {"decoder": {"layers": 2}},
        r"model.decoder.layers: 1 there, 2 here",
    ),
    "mixer": (
        "decoder-only",
        {"mixer": {"kind": "state-space"}, "attention": {}},
        r"model.mixer.kind: attention there, state-space here",
    ),
    "cell": ("recurrent", {"cell": "rnn"}, r"model.cell: gru there, rnn here"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_another_architecture_is_refused(base, heir, fit, tmp_path, misfit):
    family, model, message = MISFITS[misfit]
    config = changed(heir(base(family), family), **model)
    with pytest.raises(UserError, match=rf"do not fit this model \(.*{message}.*same \[model\]"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_kind_is_named_alone(base, heir, fit, tmp_path):
    with pytest.raises(UserError, match=r"\(model.kind: recurrent there, transformer here\)"):
        fit(heir(base("recurrent"), "transformer"), tmp_path / "run")


def test_dropout_may_differ(base, heir, fit, tmp_path):
    fit(
        changed(heir(base("recurrent"), epochs=0.1), dropout=0.5, embedding_std=0.1), tmp_path / "a"
    )


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"kind": "words"}, "tokenizer.kind is characters in .* and words here.*kind=characters"),
        ({"lowercase": True}, "tokenizer.lowercase is false in .* and true here.*lowercase=false"),
        ({"joint": False}, "tokenizer.joint is true in .* and false here.*joint=true"),
    ],
)
def test_tokens_that_mean_something_else_are_refused(base, heir, fit, tmp_path, tokenizer, message):
    with pytest.raises(UserError, match=message):
        fit(heir(base("recurrent"), tokenizer=tokenizer), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_is_reused_or_chosen(base, heir, fit, tmp_path):
    config = heir(base("recurrent"), tokenizer={"reuse": True, "min_frequency": 3}, epochs=0.1)
    message = (
        r"tokenizer\.min_frequency is 3 here, and tokenizer\.reuse takes the vocab.*made with 1"
    )
    with pytest.raises(UserError, match=message):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_done_gives_what_it_has_and_that_is_told(base, heir, tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder in (whole, part):
        shutil.copytree(base("recurrent"), folder)
    (part / "card.json").unlink()
    for folder, done in ((whole, True), (part, False)):
        ancestor = Ancestor.of(heir(folder), tmp_path / "run")
        data = corpus.load(ancestor.run.config.data)
        told = ancestor.give(ancestor.run.model, ancestor.tokenizers, data).told
        assert any("is not done: what it has learned so far is taken" in t for t in told) != done


def test_a_vocabulary_of_nothing_is_not_reused(base, heir, fit, tmp_path):
    shutil.copytree(base("recurrent", False), tmp_path / "base")
    file = tmp_path / "base" / "config.toml"
    (tmp_path / "a.txt").write_text("text")
    before, _, rest = file.read_text().partition("[data]")
    table = f'[data]\nkind = "text"\ntrain = "{tmp_path}/a.txt"\nval = "{tmp_path}/a.txt"\n'
    file.write_text(before + table + "\n[" + rest.partition("\n[")[2])
    config = heir(tmp_path / "base", tokenizer={"joint": False, "reuse": True})
    with pytest.raises(
        UserError, match="has read nothing, so it has no source vocabulary to reuse"
    ):
        fit(config, tmp_path / "run")


def test_a_run_that_is_not_there_or_not_trained(base, heir, fit, tmp_path):
    with pytest.raises(UserError, match=r"^init: there is no run folder .*none$"):
        fit(heir(tmp_path / "none"), tmp_path / "run")
    with pytest.raises(
        UserError, match=r"but a preset to make one: type `regard train case`.*--init runs/case`"
    ):
        fit(heir(Path("case")), tmp_path / "run")
    with pytest.raises(
        UserError,
        match=r"folder runs/case: make it first with `regard train case --run runs/case`$",
    ):
        fit(heir(Path("runs/case")), tmp_path / "run")
    with pytest.raises(UserError, match=r'folder captions-ml\. Did you mean "captions-lm"\?$'):
        fit(heir(Path("captions-ml")), tmp_path / "run")
    shutil.copytree(base("recurrent"), tmp_path / "base")
    with pytest.raises(UserError, match=r'folder .*bsae\. Did you mean "base"\?$'):
        fit(heir(tmp_path / "bsae"), tmp_path / "run")
    (tmp_path / "base" / "card.json").write_text("{")
    with pytest.raises(UserError, match=r"card\.json is damaged: delete it, and run"):
        fit(heir(tmp_path / "base"), tmp_path / "run")
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no trained model yet"):
        fit(heir(tmp_path / "base"), tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"tokenizer.reuse takes the vocabulary of the run in init"
    ):
        Config.model_validate({"tokenizer": {"reuse": True}})
