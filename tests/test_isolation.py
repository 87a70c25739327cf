"""A test changes nothing that the threads of other tests see: servers of tests run in the same process."""

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def find_replaced_clocks(tree: ast.AST) -> Iterator[int]:
    """The lines that replace something in the module `time` itself, not its name in one of our modules."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr"):
            continue
        target, *rest = node.args
        if isinstance(target, ast.Constant):  # "time.sleep"
            owner = str(target.value).rpartition(".")[0]
        else:
            owner = ast.unparse(target) if len(rest) == 2 else ""
        if owner.rpartition(".")[2] == "time":
            yield node.lineno


def test_no_test_replaces_the_clock_of_the_process():
    """A server of a test that read such a clock ended with its error, in a test that has no server."""
    found = {
        f"{path.relative_to(HERE)}:{line}"
        for path in HERE.rglob("*.py")
        for line in find_replaced_clocks(ast.parse(path.read_text("utf-8")))
    }
    assert not found, (
        'replace the name in one module: setattr(module, "time", SimpleNamespace(...))'
    )


def test_replaced_clocks_are_found():
    for text in (
        'monkeypatch.setattr(display.time, "monotonic", read)',
        'patch.setattr(time, "sleep", list.append)',
        'monkeypatch.setattr("regard.display.time.monotonic", read)',
        'monkeypatch.setattr("time.sleep", read)',
    ):
        assert list(find_replaced_clocks(ast.parse(text))), text
    for text in (
        'monkeypatch.setattr(display, "time", clock)',
        'monkeypatch.setattr("regard.display.time", clock)',
        'setattr(run, "time", 3)',
    ):
        assert not list(find_replaced_clocks(ast.parse(text))), text
