"""`python -m docs.site [--quick] [--out FOLDER]`: build the site, with warnings as errors, and check it."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from docs.site.check import check_site
from docs.site.stage import Stage

ROOT = Path(__file__).parents[2]


def build(out: Path, quick: bool) -> None:
    started = time.perf_counter()
    source = Path(f"{out.resolve()}-source")
    stage = Stage(source, quick)
    stage.build()
    staged = time.perf_counter()
    words = [
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "auto",
        "-c",
        "docs",
        "-d",
        f"{out.resolve()}-doctrees",
    ]
    words += ["-D", f"html_extra_path={source / '_extra'}", str(source), str(out.resolve())]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"sphinx: exit code {done.returncode}")
    counts, faults = check_site(out.resolve())
    ended = time.perf_counter()
    if faults:
        raise SystemExit("\n".join(faults))
    checked = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print(f"{out}/index.html: {checked} checked; {stage.figures} figures and live pages made")
    print(
        f"{staged - started:.0f} s to make the sources, {ended - staged:.0f} s to build and check"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without pictures and live pages")
    parser.add_argument(
        "--out", type=Path, default=Path("build/site"), help="build/site by default"
    )
    given = parser.parse_args()
    build(given.out, given.quick)
