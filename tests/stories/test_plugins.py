"""User-defined kinds, with the files of docs/extending.md: named in the environment, or imported."""

import re
from pathlib import Path

import pytest
import torch

import regard as package
from regard import config
from regard.config import extensions
from regard.config.extensions import load_plugin
from regard.models import build
from regard.models.build import EXTENSION_POINTS

pytestmark = pytest.mark.usefixtures("clean_registries")
SMALL = """
[data]
kind = "synthetic"
train = 150
val = 20
test = 20
max_length = 9

[training]
epochs = 1
"""


@pytest.fixture
def folder(doc_files, tmp_path, monkeypatch) -> Path:
    """my_attention.py and my_attention.toml in the working directory."""
    text = doc_files["my_attention.toml"].replace('[data]\nname = "case"\n', SMALL)
    text += "d_model = 12\nd_ff = 13\n"
    (tmp_path / "my_attention.toml").write_text(text, "utf-8")
    (tmp_path / "my_attention.py").write_text(doc_files["my_attention.py"], "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_load_the_file_named_in_the_environment(regard, folder, monkeypatch):
    train = ["train", "my_attention.toml", "--device", "cpu"]
    result = regard(*train)
    assert result.code == 2
    assert 'model.position.kind: got "log-distance"' in result.err
    assert "Your own kind? Name its file in $REGARD_PLUGINS." in result.err
    monkeypatch.setenv("REGARD_PLUGINS", "my_attention.py")
    assert regard(*train).code == 0
    saved = (folder / "runs" / "my_attention" / "config.toml").read_text("utf-8")
    assert re.search(r'kind = "log-distance"\nrate = 0\.5', saved)
    assert regard("translate", "runs/my_attention", "<U> I do").code == 0
    wrong = regard("train", "my_attention.toml", "--set", "model.position.rat=2", "--run", "other")
    assert 'the position "log-distance" does not take' in wrong.err
    # A run whose kind is not registered raises an error that names it.
    monkeypatch.delenv("REGARD_PLUGINS")
    _unregister()
    result = regard("translate", "runs/my_attention", "x")
    assert 'got "log-distance"; choose none, sinusoidal' in result.err


def _unregister() -> None:
    for point, name in (("position", "log-distance"), ("score", "negative-distance")):
        EXTENSION_POINTS[point].pop(name)
        config.EXTENSIONS[point].discard(name)
    load_plugin.cache_clear()


def test_in_python_an_import_is_enough(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import my_attention  # pyright: ignore[reportMissingImports]

    # Also named in the environment: it is not executed twice, which would register other classes.
    monkeypatch.setenv("REGARD_PLUGINS", str(folder / "my_attention.py"))
    assert "log-distance" in extensions("position")
    table = package.presets.load("my_attention.toml").model
    attention = build(table, 11, 13, joint=False).encoder[0].mixer.attention
    assert type(attention.position) is my_attention.LogDistance
    assert type(attention.score) is my_attention.NegativeDistance
    position_ids = torch.tensor([[0, 1, 3]])
    bias = attention.position.bias(torch.zeros(1, 4, 3, 3), position_ids, position_ids)
    assert bias.shape == (1, 4, 3, 3)
    assert bias[0, 2, 2].tolist() == pytest.approx(
        [-0.5 * n for n in (1.3863, 1.0986, 0)], abs=1e-4
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "REGARD_PLUGINS names .*my_attention.py, which is not a Python file"),
        (
            "import nothing_there",
            "my_attention.py, named in REGARD_PLUGINS, cannot be loaded: ModuleNotFound",
        ),
        ("def", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_loaded(regard, folder, monkeypatch, text, message):
    (folder / "my_attention.py").unlink()
    if text:
        (folder / "my_attention.py").write_text(text)
    monkeypatch.setenv("REGARD_PLUGINS", "my_attention.py")
    result = regard("train", "my_attention.toml")
    assert result.code == 2
    assert re.search(message, result.err)
    assert regard("presets").code == 0  # a command without custom kinds is not affected
