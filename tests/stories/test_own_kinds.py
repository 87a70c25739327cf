"""The README's file of one's own kinds: from a TOML through the commands, and from Python."""

import re
import sys
from pathlib import Path

import pytest
import torch

import regard as package
from regard import config
from regard.config import extensions
from regard.config.extensions import load_plugin
from regard.models import build
from regard.models.build import POINTS

README = Path(__file__).parents[2] / "README.md"
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


@pytest.fixture(autouse=True)
def _clean():
    """Every registry as it was, and no file known."""
    before = {point: dict(registry) for point, registry in POINTS.items()}
    names = {point: set(known) for point, known in config.EXTENSIONS.items()}
    load_plugin.cache_clear()
    yield
    for point, registry in POINTS.items():
        registry.clear()
        registry.update(before[point])
        config.EXTENSIONS[point] = names[point]
    load_plugin.cache_clear()
    sys.modules.pop("mine", None)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """mine.py and mine.toml, as the README has them, in the working folder."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    [code] = [text for kind, text in blocks if kind == "python" and "register(" in text]
    [table] = [text for kind, text in blocks if kind == "toml" and "nearness" in text]
    (tmp_path / "mine.py").write_text(code, "utf-8")
    (tmp_path / "mine.toml").write_text(SMALL + table + "d_model = 12\nd_ff = 13\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_know_the_file_that_the_environment_names(regard, folder, monkeypatch):
    train = ["train", "mine.toml", "--device", "cpu"]
    said = regard(*train)
    assert said.code == 2
    assert 'model.position.kind: got "nearness"' in said.err
    assert "Your own kind? Name its file in $REGARD_PLUGINS." in said.err
    monkeypatch.setenv("REGARD_PLUGINS", "mine.py")
    assert regard(*train).code == 0
    saved = (folder / "runs" / "mine" / "config.toml").read_text("utf-8")
    assert re.search(r'kind = "nearness"\nrate = 0\.5', saved)
    assert regard("translate", "runs/mine", "<U> I do").code == 0
    changed = regard("train", "mine.toml", "--set", "model.position.rat=2", "--run", "other")
    assert 'the position "nearness" does not take' in changed.err
    # A run whose kind is not there says so.
    monkeypatch.delenv("REGARD_PLUGINS")
    _forget()
    assert 'got "nearness"; choose none, sinusoidal' in regard("translate", "runs/mine", "x").err


def _forget() -> None:
    for point, name in (("position", "nearness"), ("score", "negative-distance")):
        POINTS[point].pop(name)
        config.EXTENSIONS[point].discard(name)
    load_plugin.cache_clear()


def test_in_python_an_import_is_enough(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    import mine  # pyright: ignore[reportMissingImports]

    # Named in the environment as well: it is not run twice, which would register other classes.
    monkeypatch.setenv("REGARD_PLUGINS", str(folder / "mine.py"))
    assert "nearness" in extensions("position")
    table = package.presets.load("mine.toml").model
    model = build(table, 11, 13, joint=False)
    place = model.encoder[0].mixer.attention.position
    assert type(place) is mine.Nearness
    assert type(model.encoder[0].mixer.attention.score) is mine.Negative
    at = torch.tensor([[0, 1, 3]])
    bias = place.bias(torch.zeros(1, 4, 3, 3), at, at)
    assert bias.shape == (1, 4, 3, 3)
    assert bias[0, 2, 2].tolist() == pytest.approx(
        [-0.5 * n for n in (1.3863, 1.0986, 0)], abs=1e-4
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "REGARD_PLUGINS names .*mine.py, which is not a Python file"),
        (
            "import nothing_there",
            "mine.py, named in REGARD_PLUGINS, cannot be loaded: ModuleNotFound",
        ),
        ("def", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_loaded(regard, folder, monkeypatch, text, message):
    (folder / "mine.py").unlink()
    if text:
        (folder / "mine.py").write_text(text)
    monkeypatch.setenv("REGARD_PLUGINS", "mine.py")
    said = regard("train", "mine.toml")
    assert said.code == 2
    assert re.search(message, said.err)
    assert regard("presets").code == 0  # who names no kind of their own is not troubled
