"""Ablations: each figure against a naive one, and nothing left behind."""

import copy
import io
import math
import zlib

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.errors import UserError
from regard.evaluation import ablate, ablation_report, evaluate, likelihoods, total
from regard.evaluation.ablation import (
    END,
    MOST,
    RANDOM,
    against,
    another,
    hide,
    most_attended,
)
from regard.evaluation.likelihood import Likelihood
from regard.evaluation.metrics import bleu_lower, quality
from regard.models.ablate import masked, uniform
from regard.text.batch import Encoded
from regard.translator import Translator

LAYERS = {"encoder": {"layers": 3}, "decoder": {"layers": 2}}
DEEP = {"kind": "transformer", "d_model": 6, "attention": {"heads": 2}} | LAYERS
RECURRENT = {"kind": "recurrent", "hidden_dim": 7, "embedding_dim": 5}
ONLY = {"kind": "decoder-only", "d_model": 6, "attention": {"heads": 2}, "decoder": {"layers": 2}}
TABLES = {
    "deep": DEEP,
    "decoder-only": ONLY,
    "input-feeding": RECURRENT | {"decoder": {"kind": "input-feeding"}},
    "tutorial": RECURRENT | {"decoder": {"kind": "tutorial"}},
}


@pytest.fixture(params=TABLES)
def looking(request, make) -> Translator:
    return make(TABLES[request.param])


def names(found) -> list[tuple]:
    return [(r["mechanism"], r["layer"], r.get("head"), r["change"]) for r in found["rows"]]


def test_every_head_is_silenced_once(make, pairs) -> None:
    found = ablate(make(DEEP), pairs, "heads")
    assert names(found) == [
        (mechanism, layer, head, "silenced")
        for mechanism, layers in (("encoder", 3), ("decoder", 2), ("cross", 2))
        for layer in range(1, layers + 1)
        for head in (1, 2)
    ]
    assert (found["what"], found["sentences"]) == ("heads", len(pairs))


def tell_apart(outputs, references=()) -> float:
    """In place of BLEU, which is 0 for whatever random weights say."""
    return float(zlib.crc32("\n".join(outputs).encode()))


def attentive(translator: Translator) -> Translator:
    """Attention loud enough to change what random weights say."""
    with torch.no_grad():
        for layers in translator.model.attentions().values():
            for layer in layers:
                layer.output.weight *= 20
    return translator


def test_a_silenced_head_costs_what_its_columns_do(make, pairs, monkeypatch) -> None:
    translator = attentive(make(DEEP))
    monkeypatch.setattr("regard.evaluation.ablation.bleu_lower", tell_apart)
    found = ablate(translator, pairs, "heads", bleu=True)
    report = evaluate(translator, pairs)
    assert found["untouched"]["loss"] == pytest.approx(report["loss"])
    assert found["untouched"]["bleu_lower"] == tell_apart(report["results"][0]["outputs"])
    assert any(row["bleu_lower_change"] for row in found["rows"])
    for row in found["rows"]:
        model = copy.deepcopy(translator.model)
        layer = model.attentions()[row["mechanism"]][row["layer"] - 1]
        with torch.no_grad():  # two heads, 3 wide
            layer.output.weight[:, 3 * (row["head"] - 1) : 3 * row["head"]] = 0
        other = evaluate(Translator(translator.config, translator.tokenizers, model), pairs)
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert row["loss_change"] == pytest.approx(other["loss"] - report["loss"], abs=1e-5)
        assert row["bleu_lower"] == tell_apart(other["results"][0]["outputs"])
        change = row["bleu_lower"] - found["untouched"]["bleu_lower"]
        assert row["bleu_lower_change"] == pytest.approx(change)


def test_bleu_is_the_one_of_every_evaluation(pairs) -> None:
    outputs, references = [source for source, _ in pairs], [target for _, target in pairs]
    assert bleu_lower(outputs, references) == quality(outputs, references)["bleu_lower"] > 0


def test_bleu_of_heads_is_for_those_who_ask(looking: Translator, pairs) -> None:
    found = ablate(looking, pairs, "heads")
    assert "bleu_lower" not in found["untouched"]
    assert all("bleu_lower" not in row for row in found["rows"])


def test_equal_weights_by_layer_and_all_at_once(make, pairs, monkeypatch) -> None:
    translator = attentive(make(DEEP))
    monkeypatch.setattr("regard.evaluation.ablation.bleu_lower", tell_apart)
    found = ablate(translator, pairs, "attention")
    assert any(row.get("bleu_lower_change") for row in found["rows"])
    level = [name for name in names(found) if name[3] == "uniform"]
    assert level == [
        (mechanism, layer, None, "uniform")
        for mechanism, layers in (("encoder", (1, 2, 3)), ("decoder", (1, 2)), ("cross", (1, 2)))
        for layer in (*layers, None)
    ]
    encoded = Encoded.of(pairs, translator.tokenizers)
    for row in found["rows"][: len(level)]:
        layers = translator.model.attentions()[row["mechanism"]]
        some = layers if row["layer"] is None else [layers[row["layer"] - 1]]
        with uniform(some):
            loss = total(likelihoods(translator.model, encoded)).loss
            said = translator.translate([source for source, _ in pairs], attention=False)
        assert row["loss"] == pytest.approx(loss)
        assert row["bleu_lower"] == tell_apart([output.text for output in said])


def test_one_layer_is_all_layers(looking: Translator, pairs) -> None:
    found = ablate(looking, pairs, "attention")
    cross = [(row["layer"], row["change"]) for row in found["rows"] if row["mechanism"] == "cross"]
    hidden = [(None, f"{name} masked") for name in (MOST, RANDOM, END)]
    layers = looking.model.attentions().get("cross", [])
    several = [(None, "uniform")] if len(layers) > 1 else []
    levels = [(number, "uniform") for number in range(1, len(layers) + 1)]
    assert cross == [*levels, *several, *hidden]


def alone(translator: Translator, pair, choose) -> float:
    """The nats of one sentence with a word hidden from each target token, chosen in plain Python."""
    batch = Encoded.of([pair], translator.tokenizers).batch([0])
    inputs = batch.source, batch.source_mask, batch.target
    with torch.no_grad():
        seen = translator.model.explain(*inputs)["cross"][0].mean((0, 1)).tolist()
        words = [choose(row[:-1], len(row) - 1) for row in seen]
        layers = translator.model.attentions()
        memory = translator.model.encode(*inputs[:2])
        with masked(layers.get("cross") or layers["decoder"], torch.tensor([words])):
            features = translator.model.features(memory, batch.target)
        chances = translator.model.project(features)[0].log_softmax(-1)
    return -sum(float(chances[i, word]) for i, word in enumerate(batch.wanted[0].tolist()))


def test_hidden_words_one_sentence_at_a_time(looking: Translator, pairs) -> None:
    found = {row["change"]: row for row in ablate(looking, pairs, "attention")["rows"]}
    tokens = sum(len(target) + 1 for _, target in pairs)
    choices = {
        MOST: lambda row, end: row.index(max(row)) if end > 1 else -1,
        END: lambda row, end: end if end > 1 else -1,
    }
    for name, choose in choices.items():
        nats = sum(alone(looking, pair, choose) for pair in pairs)
        assert found[f"{name} masked"]["loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_random_words_are_drawn_alike_in_any_batch(looking: Translator, pairs) -> None:
    encoded = Encoded.of(pairs, looking.tokenizers)
    before = likelihoods(looking.model, encoded)
    rows, words = hide(looking.model, encoded, before, draws=3, seed=7)
    again, same = hide(looking.model, encoded, before, draws=3, seed=7, batch_tokens=1)
    for one, other in zip(rows, again, strict=True):
        assert one["change"] == other["change"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert same["random_losses"] == pytest.approx(words["random_losses"], rel=1e-5)
    assert len(set(words["random_losses"])) == 3
    change = {row["change"]: row["loss"] for row in rows}
    assert change[f"{RANDOM} masked"] == pytest.approx(np.mean(words["random_losses"]))
    difference = change[f"{MOST} masked"] - change[f"{RANDOM} masked"]
    assert words["most_over_random"] == pytest.approx(difference)
    _, others = hide(looking.model, encoded, before, draws=3, seed=8)
    assert others["random_losses"] != pytest.approx(words["random_losses"], rel=1e-7)


def test_a_sentence_of_one_word_has_no_other_to_hide(looking: Translator) -> None:
    found = ablate(looking, [("e", "e f"), ("c", "No")], "attention")
    for row in found["rows"]:
        if "masked" in row["change"]:
            assert row["loss_change"] == pytest.approx(0.0, abs=1e-6)


def test_the_most_attended_word_is_a_word() -> None:
    seen = torch.tensor([[[0.1, 0.3, 0.2, 0.4], [0.5, 0.1, 0.1, 0.3]], [[0.2, 0.8, 0.0, 0.0]] * 2])
    ends = torch.tensor([[3, 3], [1, 1]])
    assert most_attended(seen, ends).tolist() == [[1, 0], [0, 0]]


def test_another_word_is_any_other_word() -> None:
    words, ends = torch.tensor([[2] * 400, [0] * 400]), torch.tensor([[5] * 400, [2] * 400])
    drawn = another(words, ends, [3, 9], [0, 1])
    assert set(drawn[0].tolist()) == {0, 1, 3, 4}
    assert set(drawn[1].tolist()) == {1}
    counts = np.bincount(drawn[0].tolist())
    assert counts[[0, 1, 3, 4]].min() > 60
    assert torch.equal(another(words[:1], ends[:1], [3], [0, 1])[0], drawn[0])
    assert not torch.equal(another(words[:1], ends[:1], [3], [0, 2])[0], drawn[0])


def test_the_error_is_that_of_a_paired_mean() -> None:
    before = [Likelihood(nats, 5, 0) for nats in (1.0, 2.0, 4.0)]
    after = [Likelihood(nats, 5, 0) for nats in (2.0, 2.5, 7.0)]
    row = against(before, after)
    changes = np.array([1.0, 0.5, 3.0]) / 5
    assert row["loss_change"] == pytest.approx(changes.mean())
    assert row["loss_error"] == pytest.approx(changes.std(ddof=1) / math.sqrt(3))
    assert against(before[:1], after[:1])["loss_error"] is None
    assert against(before, before)["loss_error"] == 0


@pytest.mark.parametrize("what", ["heads", "attention"])
def test_the_model_is_left_as_it_was(looking: Translator, pairs, what) -> None:
    encoded = Encoded.of(pairs, looking.tokenizers)
    before = likelihoods(looking.model, encoded)
    ablate(looking, pairs, what)
    assert likelihoods(looking.model, encoded) == before


@pytest.mark.parametrize("what", ["heads", "attention"])
def test_no_attention(make, pairs, what) -> None:
    bottleneck = make(RECURRENT | {"attention": "none"})
    with pytest.raises(UserError, match="this model has no attention to take away"):
        ablate(bottleneck, pairs, what)


def test_what_is_done_is_told(looking: Translator, pairs) -> None:
    for what in ("heads", "attention"):
        heard = []
        found = ablate(looking, pairs, what, tell=lambda *said, to=heard: to.append(said))
        assert [row for _, row in heard] == found["rows"]
        shares = [share for share, _ in heard]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


# --- for people -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "bleu"), [("heads", False), ("heads", True), ("attention", False)]
)
def test_the_table_fits_a_terminal(looking: Translator, pairs, what, bleu) -> None:
    found = ablate(looking, pairs, what, bleu=bleu)
    console = Console(width=80, record=True, soft_wrap=True, file=io.StringIO())
    ablation_report.show(found, console)
    text = console.export_text()
    lines = text.splitlines()
    assert sum(line.split()[:1] == ["cross"] for line in lines) == sum(
        row["mechanism"] == "cross" for row in found["rows"]
    )
    assert "…" not in text
    for row in found["rows"]:
        assert f"{row['loss']:.4f}" in text
        assert f"{row['loss_change']:+.4f}" in text


def row(change: str, rise: float, **more) -> dict:
    names = {"mechanism": "cross", "layer": None, "change": change}
    return names | {"loss": 2 + rise, "loss_change": rise, "loss_error": 0.01} | more


@pytest.mark.parametrize(("over", "verdict"), [(1.2, "point at"), (0.001, "do not point at")])
def test_the_verdict_on_words(over: float, verdict: str) -> None:
    rows = [row(f"{MOST} masked", over + 0.1), row(f"{RANDOM} masked", 0.1)]
    words = {"most_over_random": over, "most_over_random_error": 0.01, "end_most_attended": 0.25}
    said = ablation_report.verdicts({"what": "attention", "rows": rows, "words": words})
    assert f"the weights {verdict} what matters" in said[0]
    assert "25.0%" in said[1]


def test_the_verdict_on_heads() -> None:
    rises = (0.2, 0.5, 0.015, -0.1)
    rows = [row("silenced", rise) | {"layer": 1, "head": n + 1} for n, rise in enumerate(rises)]
    [said] = ablation_report.verdicts({"what": "heads", "rows": rows})
    assert "Most needed: cross-attention, layer 1, head 2 (+0.5000)" in said
    assert "2 of 4" in said
