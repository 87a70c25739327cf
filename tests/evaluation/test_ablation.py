"""Ablations: each result against a naive computation, and the model restored afterwards."""

import copy
import io
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.api import Translator
from regard.config import Config
from regard.errors import UserError
from regard.evaluation import ablate, ablation_report, aggregate, evaluate, likelihoods
from regard.evaluation.ablation import (
    EOS_TOKEN,
    MOST_ATTENDED,
    RANDOM_OTHER,
    compare_losses,
    mask_tokens,
    most_attended,
    sample_other,
)
from regard.evaluation.likelihood import Likelihood
from regard.evaluation.metrics import bleu_lower, score_corpus
from regard.models.intervene import mask_keys, uniform_attention
from regard.terminal import Console
from regard.text.batch import EncodedPairs

LAYERS = {"encoder": {"layers": 3}, "decoder": {"layers": 2}}
DEEP = {"kind": "transformer", "d_model": 6, "attention": {"heads": 2}} | LAYERS
RECURRENT = {"kind": "recurrent", "hidden_dim": 7, "embedding_dim": 5}
DECODER_ONLY = {
    "kind": "decoder-only",
    "d_model": 6,
    "attention": {"heads": 2, "kv_heads": 1},
    "decoder": {"layers": 2},
}
MODELS = {
    "deep": DEEP,
    "decoder-only": DECODER_ONLY,
    "input-feeding": RECURRENT | {"decoder": {"kind": "input-feeding"}},
    "tutorial": RECURRENT | {"decoder": {"kind": "tutorial"}},
}


@pytest.fixture(params=MODELS)
def attentive(request, make) -> Translator:
    return make(MODELS[request.param])


def interventions(report) -> list[tuple]:
    return [(r["mechanism"], r["layer"], r.get("head"), r["intervention"]) for r in report["rows"]]


def without_source_eos(translator: Translator) -> Translator:
    tokenizers = replace(translator.tokenizers, source_eos=False)
    return Translator(translator.config, tokenizers, translator.model)


def test_masking_tokens_needs_the_eos_of_the_source(make, pairs) -> None:
    translator = without_source_eos(make(RECURRENT))
    with pytest.raises(UserError, match=r"sources have none \(tokenizer.source_eos = false\)"):
        ablate(translator, pairs, "attention")
    assert ablate(translator, pairs, "heads")["rows"]


def test_each_head_is_ablated_once(make, pairs) -> None:
    report = ablate(make(DEEP), pairs, "heads")
    assert interventions(report) == [
        (mechanism, layer, head, "ablated")
        for mechanism, layers in (("encoder", 3), ("decoder", 2), ("cross", 2))
        for layer in range(1, layers + 1)
        for head in (1, 2)
    ]
    assert (report["kind"], report["sentences"]) == ("heads", len(pairs))


def checksum(outputs, references=()) -> float:
    """Replaces BLEU, which is 0 for all outputs of random weights."""
    return float(zlib.crc32("\n".join(outputs).encode()))


def amplify(translator: Translator) -> Translator:
    """Scale attention outputs up until they change the output of random weights."""
    with torch.no_grad():
        for layers in translator.model.attention_layers().values():
            for layer in layers:
                layer.output.weight *= 20
    return translator


def test_head_ablation_equals_zeroing_its_output_columns(make, pairs, monkeypatch) -> None:
    translator = amplify(make(DEEP))
    monkeypatch.setattr(
        "regard.evaluation.ablation.score", lambda name, outputs, references: checksum(outputs)
    )
    report = ablate(translator, pairs, "heads", bleu=True)
    evaluation = evaluate(translator, pairs)
    assert report["baseline"]["loss"] == pytest.approx(evaluation["loss"])
    assert report["baseline"]["bleu_lower"] == checksum(evaluation["results"][0]["outputs"])
    assert any(row["bleu_lower_change"] for row in report["rows"])
    for row in report["rows"]:
        model = copy.deepcopy(translator.model)
        layer = model.attention_layers()[row["mechanism"]][row["layer"] - 1]
        with torch.no_grad():  # two heads of dimension 3
            layer.output.weight[:, 3 * (row["head"] - 1) : 3 * row["head"]] = 0
        other = evaluate(Translator(translator.config, translator.tokenizers, model), pairs)
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert row["loss_change"] == pytest.approx(other["loss"] - evaluation["loss"], abs=1e-5)
        assert row["bleu_lower"] == checksum(other["results"][0]["outputs"])
        change = row["bleu_lower"] - report["baseline"]["bleu_lower"]
        assert row["bleu_lower_change"] == pytest.approx(change)


def test_head_ablation_equals_weights_of_zero_to_the_last_bit(attentive: Translator, pairs) -> None:
    """The reference patches the normaliser itself, for every query that a layer has."""
    report = ablate(attentive, pairs, "heads")
    encoded = EncodedPairs.from_pairs(pairs, attentive.tokenizers)
    for row in report["rows"]:
        layer = attentive.model.attention_layers()[row["mechanism"]][row["layer"] - 1]
        normalise, head = layer.normalise, row["head"] - 1

        def without_head(scores, normalise=normalise, head=head):
            weights = normalise(scores)
            weights.view(len(weights), -1, *weights.shape[-2:])[:, head] = 0
            return weights

        layer.normalise = without_head
        after = likelihoods(attentive.model, encoded)
        layer.normalise = normalise
        expected = compare_losses(likelihoods(attentive.model, encoded), after)
        assert {name: row[name] for name in expected} == expected


def test_bleu_lower_is_that_of_score_corpus(pairs) -> None:
    outputs, references = [source for source, _ in pairs], [target for _, target in pairs]
    assert bleu_lower(outputs, references) == score_corpus(outputs, references)["bleu_lower"] > 0


def test_bleu_of_heads_is_optional(attentive: Translator, pairs) -> None:
    report = ablate(attentive, pairs, "heads")
    assert "bleu_lower" not in report["baseline"]
    assert all("bleu_lower" not in row for row in report["rows"])


def test_uniform_weights_by_layer_and_in_all_layers(make, pairs, monkeypatch) -> None:
    translator = amplify(make(DEEP))
    monkeypatch.setattr(
        "regard.evaluation.ablation.score", lambda name, outputs, references: checksum(outputs)
    )
    report = ablate(translator, pairs, "attention")
    assert any(row.get("bleu_lower_change") for row in report["rows"])
    uniform_rows = [row for row in interventions(report) if row[3] == "uniform"]
    assert uniform_rows == [
        (mechanism, layer, None, "uniform")
        for mechanism, layers in (("encoder", (1, 2, 3)), ("decoder", (1, 2)), ("cross", (1, 2)))
        for layer in (*layers, None)
    ]
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    for row in report["rows"][: len(uniform_rows)]:
        layers = translator.model.attention_layers()[row["mechanism"]]
        selected = layers if row["layer"] is None else [layers[row["layer"] - 1]]
        with uniform_attention(selected):
            loss = aggregate(likelihoods(translator.model, encoded)).loss
            outputs = translator.translate([source for source, _ in pairs], attention=False)
        assert row["loss"] == pytest.approx(loss)
        assert row["bleu_lower"] == checksum([output.text for output in outputs])


def test_a_single_layer_has_no_row_for_all_layers(attentive: Translator, pairs) -> None:
    report = ablate(attentive, pairs, "attention")
    cross = [
        (row["layer"], row["intervention"]) for row in report["rows"] if row["mechanism"] == "cross"
    ]
    masked_rows = [(None, f"{name} masked") for name in (MOST_ATTENDED, RANDOM_OTHER, EOS_TOKEN)]
    layers = attentive.model.attention_layers().get("cross", [])
    all_layers = [(None, "uniform")] if len(layers) > 1 else []
    by_layer = [(number, "uniform") for number in range(1, len(layers) + 1)]
    assert cross == [*by_layer, *all_layers, *masked_rows]


def masked_nats(translator: Translator, pair, choose) -> float:
    """The nats of one sentence with one source token masked per target token, chosen in plain Python."""
    batch = EncodedPairs.from_pairs([pair], translator.tokenizers).batch([0])
    inputs = batch.source, batch.source_mask, batch.target
    with torch.no_grad():
        weights = translator.model.attention_weights(*inputs)["cross"][0].mean((0, 1)).tolist()
        tokens = [choose(row[:-1], len(row) - 1) for row in weights]
        memory = translator.model.encode(*inputs[:2])
        with mask_keys(translator.model, torch.tensor([tokens])):
            features = translator.model.features(memory, batch.target)
        log_probs = translator.model.project(features)[0].log_softmax(-1)
    return -sum(float(log_probs[i, token]) for i, token in enumerate(batch.labels[0].tolist()))


def test_masked_tokens_one_sentence_at_a_time(attentive: Translator, pairs) -> None:
    rows = {row["intervention"]: row for row in ablate(attentive, pairs, "attention")["rows"]}
    tokens = sum(len(target) + 1 for _, target in pairs)
    choices = {
        MOST_ATTENDED: lambda row, eos: row.index(max(row)) if eos > 1 else -1,
        EOS_TOKEN: lambda row, eos: eos if eos > 1 else -1,
    }
    for name, choose in choices.items():
        nats = sum(masked_nats(attentive, pair, choose) for pair in pairs)
        assert rows[f"{name} masked"]["loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_random_tokens_do_not_depend_on_the_batch(attentive: Translator, pairs) -> None:
    encoded = EncodedPairs.from_pairs(pairs, attentive.tokenizers)
    before = likelihoods(attentive.model, encoded)
    rows, masking = mask_tokens(attentive.model, encoded, before, draws=3, seed=7)
    batched_rows, batched = mask_tokens(
        attentive.model, encoded, before, draws=3, seed=7, batch_tokens=1
    )
    for one, other in zip(rows, batched_rows, strict=True):
        assert one["intervention"] == other["intervention"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert batched["random_losses"] == pytest.approx(masking["random_losses"], rel=1e-5)
    assert len(set(masking["random_losses"])) == 3
    losses = {row["intervention"]: row["loss"] for row in rows}
    assert losses[f"{RANDOM_OTHER} masked"] == pytest.approx(np.mean(masking["random_losses"]))
    difference = losses[f"{MOST_ATTENDED} masked"] - losses[f"{RANDOM_OTHER} masked"]
    assert masking["most_minus_random"] == pytest.approx(difference)
    _, reseeded = mask_tokens(attentive.model, encoded, before, draws=3, seed=8)
    assert reseeded["random_losses"] != pytest.approx(masking["random_losses"], rel=1e-7)


def test_single_token_sources_are_not_masked(attentive: Translator) -> None:
    report = ablate(attentive, [("e", "e f"), ("c", "No")], "attention")
    for row in report["rows"]:
        if "masked" in row["intervention"]:
            assert row["loss_change"] == pytest.approx(0.0, abs=1e-6)


def test_most_attended_excludes_eos_and_padding() -> None:
    weights = torch.tensor(
        [[[0.1, 0.3, 0.2, 0.4], [0.5, 0.1, 0.1, 0.3]], [[0.2, 0.8, 0.0, 0.0]] * 2]
    )
    eos = torch.tensor([[3, 3], [1, 1]])
    assert most_attended(weights, eos).tolist() == [[1, 0], [0, 0]]


def test_sample_other_is_uniform_over_the_other_tokens() -> None:
    tokens, eos = torch.tensor([[2] * 400, [0] * 400]), torch.tensor([[5] * 400, [2] * 400])
    sampled = sample_other(tokens, eos, [3, 9], [0, 1])
    assert set(sampled[0].tolist()) == {0, 1, 3, 4}
    assert set(sampled[1].tolist()) == {1}
    counts = np.bincount(sampled[0].tolist())
    assert counts[[0, 1, 3, 4]].min() > 60
    assert torch.equal(sample_other(tokens[:1], eos[:1], [3], [0, 1])[0], sampled[0])
    assert not torch.equal(sample_other(tokens[:1], eos[:1], [3], [0, 2])[0], sampled[0])


def test_standard_error_of_a_paired_mean() -> None:
    before = [Likelihood(nats, 5, 0) for nats in (1.0, 2.0, 4.0)]
    after = [Likelihood(nats, 5, 0) for nats in (2.0, 2.5, 7.0)]
    row = compare_losses(before, after)
    changes = np.array([1.0, 0.5, 3.0]) / 5
    assert row["loss_change"] == pytest.approx(changes.mean())
    assert row["standard_error"] == pytest.approx(changes.std(ddof=1) / math.sqrt(3))
    assert compare_losses(before[:1], after[:1])["standard_error"] is None
    assert compare_losses(before, before)["standard_error"] == 0


@pytest.mark.parametrize("kind", ["heads", "attention"])
def test_the_model_is_restored(attentive: Translator, pairs, kind) -> None:
    encoded = EncodedPairs.from_pairs(pairs, attentive.tokenizers)
    before = likelihoods(attentive.model, encoded)
    ablate(attentive, pairs, kind)
    assert likelihoods(attentive.model, encoded) == before


@pytest.mark.parametrize("kind", ["heads", "attention"])
def test_model_without_attention_error(make, pairs, kind) -> None:
    bottleneck = make(RECURRENT | {"attention": "none"})
    with pytest.raises(UserError, match="this model has no attention to ablate"):
        ablate(bottleneck, pairs, kind)


def test_language_models_have_heads_to_ablate_but_no_source(make, pairs) -> None:
    """No source token can be masked, and there are no translations: no BLEU, no conclusion from one."""
    translator = make(DECODER_ONLY)
    data = {"kind": "text", "train": "train.txt", "val": "val.txt"}
    translator.config = Config.model_validate({"model": DECODER_ONLY, "data": data})
    assert translator.config.is_language_model
    sentences = [("", target) for _, target in pairs]
    for kind, bleu in (("attention", False), ("heads", True)):
        with pytest.raises(
            UserError, match=r"language model, which has no source .* --ablate heads"
        ):
            ablate(translator, sentences, kind, bleu=bleu)
    report = ablate(translator, sentences, "heads")
    assert report["baseline"] == {"loss": pytest.approx(evaluate(translator, sentences)["loss"])}
    assert any(abs(row["loss_change"]) > 1e-4 for row in report["rows"])
    assert "BLEU" not in printed(report)


def printed(report: dict) -> str:
    console = Console(width=80, record=True, soft_wrap=True, file=io.StringIO())
    ablation_report.print_report(report, console)
    return console.export_text()


def test_progress_is_reported_for_each_row(attentive: Translator, pairs) -> None:
    for kind in ("heads", "attention"):
        calls = []
        report = ablate(attentive, pairs, kind, progress=lambda *call, to=calls: to.append(call))
        assert [row for _, row in calls] == report["rows"]
        fractions = [fraction for fraction, _ in calls]
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0


# --- report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bleu"), [("heads", False), ("heads", True), ("attention", False)]
)
def test_table_fits_80_columns(attentive: Translator, pairs, kind, bleu) -> None:
    report = ablate(attentive, pairs, kind, bleu=bleu)
    text = printed(report)
    lines = text.splitlines()
    assert sum(line.split()[:1] == ["cross"] for line in lines) == sum(
        row["mechanism"] == "cross" for row in report["rows"]
    )
    assert "…" not in text
    for row in report["rows"]:
        assert f"{row['loss']:.4f}" in text
        assert f"{row['loss_change']:+.4f}" in text


def row(intervention: str, increase: float) -> dict:
    description = {"mechanism": "cross", "layer": None, "intervention": intervention}
    return description | {"loss": 2 + increase, "loss_change": increase, "standard_error": 0.01}


@pytest.mark.parametrize(("difference", "verdict"), [(1.2, "identify"), (0.001, "do not identify")])
def test_summary_of_token_masking(difference: float, verdict: str) -> None:
    rows = [row(f"{MOST_ATTENDED} masked", difference + 0.1), row(f"{RANDOM_OTHER} masked", 0.1)]
    masking = {
        "most_minus_random": difference,
        "most_minus_random_error": 0.01,
        "eos_most_attended": 0.25,
    }
    report = {"kind": "attention", "rows": rows, "token_masking": masking}
    summary = ablation_report.summarise(report)
    assert f"the weights {verdict} the tokens that matter" in summary[0]
    assert "25.0%" in summary[1]


def test_summary_of_heads() -> None:
    increases = (0.2, 0.5, 0.015, -0.1)
    rows = [row("ablated", x) | {"layer": 1, "head": n + 1} for n, x in enumerate(increases)]
    [summary] = ablation_report.summarise({"kind": "heads", "rows": rows})
    assert "Most important: cross-attention, layer 1, head 2 (+0.5000)" in summary
    assert "2 of 4" in summary
