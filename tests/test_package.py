"""The package itself: public names, version, type marker."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import regard
from regard.config import renamed

ROOT = Path(__file__).parents[1]


def test_dir_lists_the_public_names_and_each_resolves():
    assert dir(regard) == sorted(regard.__all__)
    assert {"load", "register", "Translation", "Translator", "UserError"} <= set(dir(regard))
    for name in dir(regard):
        assert getattr(regard, name) is not None


def test_dir_imports_no_torch():
    code = "import sys, regard; dir(regard); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_waiting_threads_spin_less_unless_the_user_decides():
    """Only before PyTorch is imported: afterwards OpenMP does not read it."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

    def settings(before: str = "pass", **user: str) -> dict[str, str]:
        code = f"import os, sys, json; {before}; import regard; print(json.dumps(dict(os.environ)))"
        environment = {k: v for k, v in os.environ.items() if k not in names} | user
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return {k: v for k, v in json.loads(done.stdout).items() if k in names}

    assert settings() == {"GOMP_SPINCOUNT": "2000"}
    assert settings(GOMP_SPINCOUNT="7") == {"GOMP_SPINCOUNT": "7"}
    assert settings(OMP_WAIT_POLICY="ACTIVE") == {"OMP_WAIT_POLICY": "ACTIVE"}
    assert settings("sys.modules['torch'] = sys") == {}


def test_package_is_marked_as_typed():
    assert resources.files("regard").joinpath("py.typed").is_file()
    assert '"Typing :: Typed"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_version_heads_the_changelog():
    versions = re.findall(
        r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    assert versions[0] == regard.__version__


def test_changelog_lists_every_renamed_setting():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    rows = set(re.findall(r"^\| (.+) \| (.+) \|$", text, re.M)) - {("0.1.0", "0.2.0")}
    keys = {(f"`{old}`", f"`{old.partition('.')[0]}.{new}`") for old, new in renamed.KEYS.items()}
    values = {
        (f'`{key} = "{old}"`', f'`{key} = "{new}"`')
        for key, names in renamed.VALUES.items()
        for old, new in names.items()
    }
    presets = {(f"preset `{old}`", f"preset `{new}`") for old, new in renamed.PRESETS.items()}
    assert rows == keys | values | presets
