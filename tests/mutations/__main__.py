"""Do the tests notice a broken library? Break a copy of it in one place at a time and run the tests.

    python -m tests.mutations                  all breaks, with the test that catches each
    python -m tests.mutations rotary beam      those whose name contains a word

Exit code 1 if a break survives.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.breaks import BREAKS, Break

ROOT = Path(__file__).parents[2]


def run_tests(source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code and output, with the library imported from `source`."""
    threads = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-xq", "--no-header", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, **threads, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


def try_break(broken: Break) -> tuple[str, float]:
    """The test that catches it, or "" if none does; and the seconds that took."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="regard-mutation-") as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        path = source / "regard" / broken.file
        path.write_text(broken.apply(path.read_text("utf-8")), "utf-8")
        code, output = run_tests(source, broken.tests)
    if code not in (0, 1):  # 1: a test failed; others: no test ran, or the import failed
        raise SystemExit(f"{broken.name}: pytest could not run the tests\n{output[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return failed[1] if failed else "", time.perf_counter() - start


def main() -> None:
    """Try the breaks, two at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only breaks whose name contains one of these")
    words = parser.parse_args().words
    selected = [b for b in BREAKS if not words or any(word in b.name for word in words)]
    targets = sorted({test for broken in selected for test in broken.tests})
    code, output = run_tests(ROOT / "src", targets)
    if code:
        raise SystemExit(f"the tests fail already without a break\n{output[-3000:]}")
    survivors = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for broken, (test, seconds) in zip(selected, pool.map(try_break, selected), strict=True):
            survivors += [] if test else [broken.name]
            print(f"{broken.name}: {test or 'SURVIVES'} ({seconds:.0f} s)", flush=True)  # noqa: T201
    print(f"{len(selected) - len(survivors)} of {len(selected)} breaks are caught")  # noqa: T201
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
