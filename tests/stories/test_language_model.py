"""A model that learns to write: plain text in, perplexity and samples out."""

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
def writer(request, regard, tmp_path_factory):
    """(run folder, the TOML it was made from)"""
    here = tmp_path_factory.mktemp("text")
    for name in ("a", "b"):
        lines = [f"{name} sentence, number {n}\n" for n in range(30)]
        (here / f"{name}.txt").write_text("".join(lines), "utf-8")
    toml = here / "text.toml"
    toml.write_text(TOML.format(here=here, model=SMALL[request.param]), "utf-8")
    said = regard("train", toml, "--run", here / "run", "--device", "cpu")
    assert said.code == 0, said.err
    return here / "run", toml


def test_evaluate_gives_perplexity_and_no_bleu(writer, regard):
    said = regard("evaluate", writer[0], "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["perplexity"] > 1
    assert found["bits_per_character"] > 0
    assert found["sentences"] == 30
    assert found["results"] == []
    shown = regard("evaluate", writer[0]).out
    assert "bits per character" in shown
    assert "no translations, so no BLEU" in shown


def test_it_writes_by_chance_or_what_is_likeliest(writer, regard):
    draws = [regard("translate", writer[0], "--sample", "--seed", seed) for seed in (1, 1, 2)]
    assert [said.code for said in draws] == [0, 0, 0]
    assert draws[0].out == draws[1].out != draws[2].out
    [drawn] = json.loads(regard("translate", writer[0], "--sample", "--json").out)
    assert len(drawn["target"]) <= 40
    several = regard("translate", writer[0], "--sample", "--nbest", 3)
    assert len(several.out.split("\n")) == 4
    assert regard("translate", writer[0]).code == 0


def test_it_does_not_translate(writer, regard):
    said = regard("translate", writer[0], "a text")
    assert said.code == 2
    assert "learned to write, not to translate: leave the text out" in " ".join(said.err.split())
    said = regard("compare", writer[1], "--out", writer[0].parent / "out", "--dry-run")
    assert said.code == 2
    assert "is a language model" in said.err


def test_what_has_no_attention_says_so(writer, regard):
    if "state-space" not in (writer[0] / "config.toml").read_text("utf-8"):
        pytest.skip("it has attention")
    said = regard("diagram", writer[0], "")
    assert said.code == 2
    assert "no attention at all, only a state of fixed size" in " ".join(said.err.split())
