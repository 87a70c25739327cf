# ruff: noqa: T201  (it prints its results)
"""Mutate every kind of file that Regard reads, and judge what the commands make of it.

    python -m tests.fuzz --minutes 5            all kinds, in turns
    python -m tests.fuzz weights card           only kinds whose name contains one of these
    python -m tests.fuzz --cases 20             so many cases of each kind, with seeds from --seed on
    python -m tests.fuzz card --file SAVED      one case again, with its traceback

Exit code 1 if a case ended in a traceback, a hang, a crash or a silent change: its file is saved, and the
command that repeats it is printed.
"""

import os

# Before NumPy, PyTorch and tokenizers are imported: children are forked, and threads do not survive that.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RUST_BACKTRACE"] = "0"

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.cases import DEFECTS, OUTCOMES, Outcome, Workshop, open_workshop, run_cases
from tests.fuzz.kinds import KINDS

BATCH = 50
FAILURES = Path("runs") / "fuzz"


def select_kinds(words: list[str]) -> list[str]:
    found = [name for name in KINDS if not words or any(word in name for word in words)]
    if not found:
        sys.exit(f"no kind of file contains {' or '.join(words)}: there is {', '.join(KINDS)}")
    return found


class Tally:
    """Counts by kind and outcome; every defect is reported and its file saved at once."""

    def __init__(self, workshop: Workshop, progress: bool) -> None:
        self.workshop, self.progress = workshop, progress
        self.counts: dict[str, Counter[str]] = {}
        self.defects: list[Outcome] = []

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.counts.setdefault(outcome.kind, Counter())[outcome.name] += 1
            if outcome.is_defect:
                self.report(outcome)

    def report(self, outcome: Outcome) -> None:
        self.defects.append(outcome)
        path, content = self.workshop.mutated(outcome.kind, outcome.seed)
        saved = FAILURES / f"{outcome.kind}-{outcome.seed}" / path.name
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_bytes(content)
        (saved.parent / "outcome.txt").write_text(f"{outcome.name}\n{outcome.detail}\n", "utf-8")
        if self.progress:
            detail = outcome.detail.strip().rpartition("\n")[2][:200]
            again = f"python -m tests.fuzz {outcome.kind} --file {saved}"
            print(f"{outcome.name}: {again}   (seed {outcome.seed}: {detail})", file=sys.stderr)

    def table(self) -> str:
        """Markdown: a row per kind, and their sums."""
        rows = [["file kind", "cases", *OUTCOMES]]
        total = sum(self.counts.values(), Counter[str]())
        for kind, counts in [*self.counts.items(), ("all", total)]:
            rows.append(
                [kind, *(f"{n:,}" for n in (counts.total(), *(counts[o] for o in OUTCOMES)))]
            )
        rows.insert(1, ["---", *("---:" for _ in rows[0][1:])])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def repeat(kind: str, file: Path) -> None:
    """Print what becomes of a saved file."""
    if kind not in KINDS:
        sys.exit(f"--file needs the name of one kind: {', '.join(KINDS)}")
    with open_workshop() as workshop:
        workshop.given = file.read_bytes()
        [outcome] = run_cases(workshop, kind, [0])
    print(f"{outcome.name}: {OUTCOMES[outcome.name]}\n{outcome.detail}")
    sys.exit(outcome.is_defect)


def fuzz(kinds: list[str], seed: int, cases: int | None, minutes: float, progress: bool) -> Tally:
    with open_workshop() as workshop:
        tally, started = Tally(workshop, progress), time.monotonic()
        if cases is not None:
            for kind in kinds:
                tally.add(run_cases(workshop, kind, range(seed, seed + cases)))
            return tally
        while time.monotonic() < started + 60 * minutes:
            for kind in kinds:
                tally.add(run_cases(workshop, kind, range(seed, seed + BATCH)))
                if time.monotonic() > started + 60 * minutes:
                    break
            seed += BATCH
        return tally


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", help="parts of names of file kinds; all by default")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--cases", type=int, help="cases of each kind, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case of each kind")
    parser.add_argument("--json", action="store_true", help="print counts and defects as JSON")
    parser.add_argument("--file", type=Path, help="a file to read instead of a mutated one")
    options = parser.parse_args()
    if options.file:
        repeat("".join(options.kinds), options.file)
    kinds, started = select_kinds(options.kinds), time.monotonic()
    tally = fuzz(kinds, options.seed, options.cases, options.minutes, not options.json)
    if options.json:
        document = {"counts": tally.counts, "defects": [d.__dict__ for d in tally.defects]}
        print(json.dumps(document))
    else:
        cases, seconds = sum(c.total() for c in tally.counts.values()), time.monotonic() - started
        print(tally.table())
        defects = f"{len(tally.defects)} defects ({', '.join(DEFECTS)})"
        print(f"\n{cases:,} cases in {seconds:,.0f} s; {defects}")
    sys.exit(bool(tally.defects))


if __name__ == "__main__":
    main()
