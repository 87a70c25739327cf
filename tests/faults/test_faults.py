"""`make faults` in a short form: a few crash points and failed writes of every command that writes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from tests.faults.commands import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_lost():
    source = Path(regard.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults", "--short"]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name in COMMANDS:  # tried, and not skipped
        assert re.search(rf"^{re.escape(name)} +1 +1 +1 +1 ", result.stdout, re.MULTILINE), name
    assert re.search(r"^environment +(\d+) +\1$", result.stdout, re.MULTILINE)
