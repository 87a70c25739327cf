"""A run exported for the Hugging Face hub, and loaded again from there: a server on this machine."""

import json

import pytest

import regard as package
from tests.hub_server import serve

TEXT = "<U> I am a student"


@pytest.fixture(scope="module")
def exported(run, regard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "case-gru"
    result = regard("export", run, "--to", "hub", "--out", folder, "--beam", 2)
    assert result.code == 0, result.err
    assert "test, beam 2: BLEU" in result.out
    assert 'not LLaMA\'s: model.kind is "recurrent"' in result.out
    return folder


@pytest.fixture
def hub(exported, monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    with serve() as hub:
        hub.files = {"models/me/case": {p.name: p.read_bytes() for p in exported.iterdir()}}
        hub.large = {"model.safetensors"}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_a_run_on_the_hub_translates_bit_by_bit_as_the_original(run, hub, regard):
    one = package.load(run).translate([TEXT], beam=3)[0]
    other = package.load("hf:me/case@v1").translate([TEXT], beam=3)[0]
    assert (one.text, one.score) == (other.text, other.score)
    assert one.attention["cross"].equal(other.attention["cross"])
    commands = [regard("translate", name, TEXT, "--json") for name in (run, "hf:me/case")]
    assert commands[0].out == commands[1].out
    assert commands[1].code == 0, commands[1].err


def test_every_command_takes_an_exported_folder(exported, regard, tmp_path):
    assert regard("evaluate", exported, "--first", 3).code == 0
    assert regard("diagram", exported, TEXT, "--out", tmp_path / "a.svg").code == 0


def test_a_warm_start_from_an_exported_folder(exported, regard, small, tmp_path):
    result = regard("train", "case", "--init", exported, "--run", tmp_path / "run", *small)
    assert result.code == 0, result.err


def test_json_is_one_document(run, regard, tmp_path):
    command = ["export", run, "--to", "hub", "--out", tmp_path / "out", "--no-bleu", "--json"]
    record = json.loads(regard(*command).out)
    assert record["scores"] is None
    assert record["why_no_scores"] == "it was not asked for"
    assert "README.md" in record["files"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "hug"], 'got "hug"; choose hub, page, ctranslate2. Did you mean "hub"?'),
        (["--to", "hub", "--split", "tset"], 'no split "tset". Did you mean "test"?'),
        (["--to", "hub", "--beam", "0"], "greater than or equal to 1"),
        (["--to", "hub", "--split", "val", "--no-bleu"], "--no-bleu evaluates nothing"),
    ],
)
def test_mistakes(words, message, run, regard, tmp_path):
    result = regard("export", run, "--out", tmp_path / "out", *words)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "out").exists()


def test_a_name_that_the_hub_does_not_have(hub, regard):
    result = regard("translate", "hf:me/nothing", TEXT)
    assert result.code == 2
    assert 'has no public model "me/nothing"' in result.err
