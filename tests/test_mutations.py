"""The deliberate breaks of tests/mutations: each still applies. `make mutations` runs them."""

from pathlib import Path

from tests.mutations.breaks import BREAKS
from tests.mutations.generate import TESTS, mutate

ROOT = Path(__file__).parents[1]


def test_every_break_changes_the_library_once_and_names_a_test_file():
    assert len(BREAKS) >= 40
    assert len({broken.name for broken in BREAKS}) == len(BREAKS)
    for broken in BREAKS:
        source = (ROOT / "src" / "regard" / broken.file).read_text("utf-8")
        changed = broken.apply(source)
        if broken.file.endswith(".py"):
            compile(changed, broken.file, "exec")
        assert all((ROOT / test).exists() for test in broken.tests), (
            broken.name
        )  # files, or a folder


def test_mutants_differ_from_their_module_in_one_place():
    source = '''
def f(path, limit=2):
    """A text."""
    with suppress(OSError):
        remove(path, True)
    if len(path) < limit and path:
        raise ValueError("a", 3)
    return g(path, limit)
'''
    changes = {
        mutant.diff(source).splitlines()[-1].strip("+ ") for mutant in mutate("f.py", source)
    }
    assert changes == {
        "def f(path, limit=(3)):",
        "with (suppress()):",
        "pass",
        "remove(path, (False))",
        "(remove(True, path))",
        "if (not (len(path) < limit and path)):",
        "if (len(path) < limit or path):",
        "if (len(path) <= limit) and path:",
        "return None",
        "return (g(limit, path))",
    }


def test_every_module_of_the_generator_has_tests_and_mutants():
    for name, groups in TESTS.items():
        assert all((ROOT / test).exists() for group in groups for test in group), name
        assert len(mutate(name, (ROOT / "src" / "regard" / name).read_text("utf-8"))) > 10
