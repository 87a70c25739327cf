"""Do the tests notice a broken library? Break a copy of it in one place at a time and run the tests.

    python -m tests.mutations                  all breaks, with the test that catches each
    python -m tests.mutations rotary beam      those whose name contains a word
    python -m tests.mutations --generate files.py training/checkpoint.py --minutes 30
                                               mutants of modules, made by rule; survivors with their diff

Exit code 1 if a break survives; of the mutants, some change nothing.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.breaks import BREAKS, Break
from tests.mutations.generate import TESTS, Mutant, choose

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "regard"
HUNG = 300.0  # seconds


def run_tests(source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code and output, with the library imported from `source`."""
    threads = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-xq", "--no-header", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, **threads, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=HUNG)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.communicate()
        return 1, "FAILED by the time limit"
    return process.returncode, output


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


def try_mutant(mutant: Mutant) -> bool:
    """Whether a test notices it; a module that cannot be imported is noticed."""
    with tempfile.TemporaryDirectory(prefix="regard-mutation-") as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        (source / "regard" / mutant.file).write_text(mutant.source, "utf-8")
        return any(run_tests(source, tests)[0] for tests in TESTS[mutant.file])


def try_mutants(files: Sequence[str], minutes: float, seed: int) -> None:
    """Try mutants, two at a time, until the time is over; list those that no test notices."""
    names = [name.removeprefix("src/regard/") for name in files]
    mutants, deadline = choose(PACKAGE, names, seed), time.monotonic() + 60 * minutes
    tried, survivors = 0, []

    def attempt(mutant: Mutant) -> bool | None:
        return try_mutant(mutant) if time.monotonic() < deadline else None

    with ThreadPoolExecutor(max_workers=2) as pool:
        for mutant, is_caught in zip(mutants, pool.map(attempt, mutants), strict=True):
            tried += is_caught is not None
            if is_caught is False:
                survivors.append(mutant)
                diff = mutant.diff((PACKAGE / mutant.file).read_text("utf-8"))
                print(f"{mutant.file}:{mutant.line}: {mutant.rule}\n{diff}\n", flush=True)  # noqa: T201
    print(f"{tried} of {len(mutants)} mutants tried, {tried - len(survivors)} caught")  # noqa: T201


def main() -> None:
    """Try the breaks, two at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only breaks whose name contains one of these")
    parser.add_argument("--generate", nargs="+", metavar="FILE", help=f"of {', '.join(TESTS)}")
    parser.add_argument("--minutes", type=float, default=30.0, help="with --generate")
    parser.add_argument("--seed", type=int, default=0, help="with --generate: the order")
    options = parser.parse_args()
    if options.generate:
        return try_mutants(options.generate, options.minutes, options.seed)
    words = options.words
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
