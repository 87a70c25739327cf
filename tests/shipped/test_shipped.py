"""The shipped models: small, trained by our presets, with the terms of their data and their figures."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

import regard
from regard import presets, shipped
from regard.compare.plan import System, plan_run
from regard.errors import UserError
from regard.loading import read_config
from regard.shipped import find_run
from regard.training.warm_start import SourceCheckpoint

MODELS = sorted(shipped.names())


def read_card(name: str) -> dict:
    return json.loads((shipped.FOLDER / name / "card.json").read_text("utf-8"))


def test_both_together_have_at_most_15_megabytes():
    assert MODELS == ["de-en", "de-en-gru"]
    files = [path for name in MODELS for path in (shipped.FOLDER / name).iterdir()]
    assert sum(path.stat().st_size for path in files) <= 15_000_000


@pytest.mark.parametrize("name", MODELS)
def test_no_sentence_is_shipped(name):
    files = {path.name for path in (shipped.FOLDER / name).iterdir()}
    assert files == {"config.toml", "tokenizer.json", "model.safetensors", "card.json"}
    assert "outputs" not in json.dumps(read_card(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_preset_trains_it(name):
    config, preset = read_config(name), presets.load(f"tatoeba-{name}")
    assert config.model_copy(update={"description": preset.description}) == preset
    assert name not in presets.names()  # --init takes both: a name must mean one thing


@pytest.mark.parametrize("name", MODELS)
def test_matrices_are_int8_and_the_model_is_float32(name):
    with safe_open(shipped.FOLDER / name / "model.safetensors", framework="pt") as file:
        assert file.metadata()["quantization"] == "int8"
    model = regard.load(name).model
    assert model.parameter_count == read_card(name)["figures"]["parameters"]
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"torch.float32"}


@pytest.mark.parametrize("name", MODELS)
def test_the_card_states_terms_and_what_int8_costs(name):
    card = read_card(name)
    assert card["terms"]["licence"] == "CC BY 2.0 FR, tatoeba.org"
    assert "contributors of tatoeba.org" in card["terms"]["attribution"]
    assert "Multi30k" in card["terms"]["why_this_data"]
    float32, int8 = (card["evaluation"][form] for form in ("float32", "int8"))
    assert int8["bytes"] == (shipped.FOLDER / name / "model.safetensors").stat().st_size
    assert int8["bytes"] < 0.27 * float32["bytes"]
    assert [row["beam"] for row in int8["results"]] == [1, 5]
    for before, after in zip(float32["results"], int8["results"], strict=True):
        assert abs(after["bleu_lower"] - before["bleu_lower"]) < 0.5


def test_a_name_stands_for_the_folder_unless_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_run("de-en") == find_run(Path("de-en")) == shipped.FOLDER / "de-en"
    assert find_run("runs/de-en") == Path("runs/de-en")
    assert find_run(shipped.FOLDER / "de-en") == shipped.FOLDER / "de-en"
    (tmp_path / "de-en").mkdir()
    assert find_run("de-en") == Path("de-en")
    with pytest.raises(
        UserError, match=r"no config\.toml; it hides the shipped model of that name"
    ):
        regard.load("de-en")


def test_an_unknown_name_says_which_models_there_are():
    message = (
        r"no run folder de-em: .*shipped model \(de-en, de-en-gru\)\. Did you mean \"de-en\"\?"
    )
    with pytest.raises(UserError, match=message):
        regard.load("de-em")


def test_a_warm_start_from_a_shipped_model(tmp_path):
    config = presets.load("tatoeba-de-en-gru", ["init=de-en-gru", "tokenizer.reuse=true"])
    source = SourceCheckpoint.load(config, tmp_path / "run")
    assert source.seconds == read_card("de-en-gru")["figures"]["training_seconds"]
    with pytest.raises(UserError, match=r'no run folder de-en-gruu\. Did you mean "de-en-gru"'):
        SourceCheckpoint.load(config.model_copy(update={"init": "de-en-gruu"}), tmp_path / "run")


def test_a_comparison_needs_no_run_before_a_shipped_model(tmp_path):
    system = System("tatoeba-de-en", ("init=de-en",), "warm start")
    run = plan_run(system, 1, system.settings, tmp_path)
    assert run.prerequisites == ()
    assert run.config.init == "de-en"


@pytest.mark.parametrize("name", MODELS)
def test_the_published_figures_are_those_of_the_card(name):
    root = Path(__file__).parents[2]
    published = (root / "results" / "README.md").read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(published) if line.startswith(f"| `{name}` | float32"))
    for form, line in zip(("float32", "int8"), published[first : first + 2], strict=True):
        figures = read_card(name)["evaluation"][form]
        scores = [row[key] for row in figures["results"] for key in ("bleu", "bleu_lower", "chrf")]
        cells = [f"{figures['bytes']:,}", f"{figures['perplexity']:.3f}"]
        assert line.endswith(f"| {' | '.join([*cells, *(f'{score:.2f}' for score in scores)])} |")
