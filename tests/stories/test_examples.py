"""examples/*.py run, with small settings."""

import importlib.util
from pathlib import Path

import regard as package

ROOT = Path(__file__).parents[2]


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_from_lists(tmp_path, capsys):
    example = load_example("train_from_lists")
    assert [example.roman(n) for n in (4, 14, 949)] == ["IV", "XIV", "CMXLIX"]
    small = example.SETTINGS | {"model": {"hidden_dim": 8, "embedding_dim": 8}}
    small |= {"training.epochs": 0.2, "search.max_extra": 2, "search.max_ratio": 0.2}
    model = example.main(str(tmp_path / "run"), small)
    out = capsys.readouterr().out
    assert "exact match on 143 unseen numbers: " in out
    assert "log-probability of CCLVI as 256: -" in out
    assert "<script" in (tmp_path / "run.html").read_text("utf-8")
    assert out.count(" attends most to ") == 4  # 2, 5, 6 and the end
    again = package.load(tmp_path / "run").translate(["XI"])
    assert again[0].text == model.translate(["XI"])[0].text
