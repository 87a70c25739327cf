"""`python -m regard.shipped`: from a run to a folder that can be shipped."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard import shipped
from regard.errors import UserError
from regard.shipped.__main__ import app, ship

TABLE = "\n".join(f"I have {n} books.\tIch habe {n} Bücher.\tCC-BY" for n in range(600))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder for $REGARD_DATA with a small Tatoeba."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "tatoeba").mkdir()
    with zipfile.ZipFile(folder / "tatoeba" / "deu-eng.zip", "w") as archive:
        archive.writestr("deu.txt", TABLE)
    return folder


@pytest.fixture
def run(data, tmp_path, monkeypatch) -> Path:
    """A run with the weights of a shipped model."""
    monkeypatch.setenv("REGARD_DATA", str(data))
    return Path(shutil.copytree(shipped.FOLDER / "de-en-gru", tmp_path / "run"))


def test_a_run_becomes_a_folder_that_translates_alike(run, tmp_path):
    folder = tmp_path / "small"
    card = ship(run, folder)
    assert card == json.loads((folder / "card.json").read_text("utf-8"))
    assert card["terms"]["dataset"] == "tatoeba-de-en"
    float32, int8 = card["evaluation"]["float32"], card["evaluation"]["int8"]
    assert float32["results"] == int8["results"]  # its weights were int8 before
    assert "\n" not in (folder / "tokenizer.json").read_text("utf-8")
    texts = ["Ich habe 7 Bücher.", "Wo ist er?"]
    outputs = [[out.text for out in regard.load(f).translate(texts)] for f in (run, folder)]
    assert outputs[0] == outputs[1]


def test_the_command_prints_sizes_and_bleu(run, tmp_path):
    result = CliRunner().invoke(app, [str(run), str(tmp_path / "small")])
    assert result.exit_code == 0
    assert result.output.count("BLEU") == 2
    assert "int8: 6," in result.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"tatoeba-de-en"', '"multi30k"', r'terms of the data "multi30k" are not in TERMS'),
        ('name = "tatoeba-de-en"', 'train = "a.tsv"\nval = "b.tsv"', 'terms of the data "files"'),
    ],
)
def test_data_whose_terms_are_unknown_is_refused(run, tmp_path, old, new, message):
    config = run / "config.toml"
    text = config.read_text("utf-8").replace(old, new)
    if "files" in message:
        text = text.replace('kind = "dataset"', 'kind = "files"')
        text = text.replace('source = "de"\n', "").replace('target = "en"\n', "")
    config.write_text(text, "utf-8")
    with pytest.raises(UserError, match=message):
        ship(run, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_the_run_itself_is_not_overwritten(run):
    with pytest.raises(UserError, match="is the run itself: choose another folder"):
        ship(run, run)


def test_mistakes_exit_with_code_2(run, tmp_path, monkeypatch):
    monkeypatch.delenv("REGARD_DATA")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    for words in ([str(tmp_path / "none"), "x"], [str(run), str(tmp_path / "x")]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
    assert "regard data get tatoeba-de-en" in result.output
