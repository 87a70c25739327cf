"""The deliberate breaks of tests/mutations: each still applies. `make mutations` runs them."""

from pathlib import Path

from tests.mutations.breaks import BREAKS

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
