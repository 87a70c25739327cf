"""A language model: trained on plain text, gives perplexity and samples."""

import json

import pytest

TOML = """
model = {model}
training = {{epochs = 1, batch_sentences = 16}}
tokenizer = {{kind = "characters", max_tokens = 40}}

[data]
kind = "text"
train = ["{here}/a.txt", "{here}/b.txt"]
val = "{here}/a.txt"
test = "{here}/b.txt"
"""
SMALL = {
    "recurrent": '{kind = "recurrent", hidden_dim = 8, embedding_dim = 8}',
    "decoder-only": '{kind = "decoder-only", d_model = 8, d_ff = 16}',
    "state-space": '{kind = "decoder-only", d_model = 8, d_ff = 16, mixer = "state-space"}',
}


@pytest.fixture(scope="module", params=SMALL)
def language_model(request, regard, tmp_path_factory):
    """(run folder, its TOML)"""
    here = tmp_path_factory.mktemp("text")
    for name in ("a", "b"):
        lines = [f"{name} sentence, number {n}\n" for n in range(30)]
        (here / f"{name}.txt").write_text("".join(lines), "utf-8")
    toml = here / "text.toml"
    toml.write_text(TOML.format(here=here, model=SMALL[request.param]), "utf-8")
    result = regard("train", toml, "--run", here / "run", "--device", "cpu")
    assert result.code == 0, result.err
    return here / "run", toml


def test_evaluate_gives_perplexity_and_no_bleu(language_model, regard):
    result = regard("evaluate", language_model[0], "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["perplexity"] > 1
    assert report["bits_per_character"] > 0
    assert report["sentences"] == 30
    assert report["results"] == []
    text = regard("evaluate", language_model[0]).out
    assert "bits per character" in text
    assert "no translations, so no BLEU" in text


def test_sampling_and_greedy_search(language_model, regard):
    samples = [
        regard("translate", language_model[0], "--sample", "--seed", seed) for seed in (1, 1, 2)
    ]
    assert [result.code for result in samples] == [0, 0, 0]
    assert samples[0].out == samples[1].out != samples[2].out
    [sample] = json.loads(regard("translate", language_model[0], "--sample", "--json").out)
    assert len(sample["target"]) <= 40
    several = regard("translate", language_model[0], "--sample", "--nbest", 3)
    assert len(several.out.split("\n")) == 4
    assert regard("translate", language_model[0]).code == 0


def test_translating_is_an_error(language_model, regard):
    result = regard("translate", language_model[0], "a text")
    assert result.code == 2
    assert "this is a language model, which has no source: leave the text out" in " ".join(
        result.err.split()
    )
    result = regard(
        "compare", language_model[1], "--out", language_model[0].parent / "out", "--dry-run"
    )
    assert result.code == 2
    assert "is a language model" in result.err


def test_diagram_without_attention_is_an_error(language_model, regard):
    if "state-space" not in (language_model[0] / "config.toml").read_text("utf-8"):
        pytest.skip("this model has attention")
    result = regard("diagram", language_model[0], "")
    assert result.code == 2
    assert "no attention at all, only a state of fixed size" in " ".join(result.err.split())
