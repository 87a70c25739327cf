"""The notebooks of examples/: every cell runs, with small settings; `make docs` runs them as they are."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "examples").glob("*.ipynb"))
# How the cells are made small. All the rest runs as written, in order.
REPLACED = {"SEEDS, EPOCHS = 3, 5": "SEEDS, EPOCHS = 1, 0.2", "EPOCHS = 15": "EPOCHS = 0.2"}
REPLACED |= {'NAME, EPOCHS = "checkpoint", 10': 'NAME, EPOCHS = "checkpoint", 0.2'}
PIP = re.compile(r"^( +)%pip install --quiet regard$", re.MULTILINE)


def read_cells(name: str) -> list[dict]:
    return json.loads((ROOT / "examples" / name).read_text("utf-8"))["cells"]


def read_code(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read_cells(name) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown: list[str] = []

    def show(path: str, width: int) -> None:
        """`IPython.display.Image`: the picture must be there."""
        assert Path(path).stat().st_size > 1000
        shown.append(path)

    namespace: dict[str, object] = {"Image": show}
    for number, code in enumerate(read_code(name)):
        code = PIP.sub(r"\1raise AssertionError('installed already')", code)
        code = code.replace("from IPython.display import Image\n", "")
        for old, new in REPLACED.items():
            code = re.sub(f"^{re.escape(old)}$", new, code, flags=re.MULTILINE)
        exec(compile(code, f"{name}, code cell {number}", "exec"), namespace)
    assert shown, "a notebook has pictures"


def test_every_replacement_is_used():
    lines = {line for name in NOTEBOOKS for code in read_code(name) for line in code.splitlines()}
    assert set(REPLACED) <= lines


def test_notebooks_are_kept_without_outputs():
    """So that a change of a notebook is a change of its text, and no picture is older than the code."""
    for name in NOTEBOOKS:
        for cell in read_cells(name):
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
            assert cell["metadata"] == {}


def test_notebooks_begin_with_a_title_and_the_same_set_up_cell():
    assert len(NOTEBOOKS) >= 5
    [set_up] = {read_code(name)[0] for name in NOTEBOOKS}
    assert len(PIP.findall(set_up)) == 1
    for name in NOTEBOOKS:
        assert read_cells(name)[0]["source"][0].startswith("# ")
        assert not re.search(r"^ *[%!]", "\n".join(read_code(name)[1:]), re.MULTILINE)


def test_the_homework_takes_60_lines():
    code = "\n".join(read_code("homework.ipynb")[1:])
    assert len([line for line in code.splitlines() if line.strip()]) <= 60
    assert "in 60 lines" in "".join(read_cells("homework.ipynb")[0]["source"])
