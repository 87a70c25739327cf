"""Attack the checker of worksheets on this system, and list what was stopped.

    python -m tests.labs.attacks               all attacks
    python -m tests.labs.attacks read kill     those whose name contains a word

Exit code 1 if an attack does harm that its file does not admit.
"""

import platform
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.labs.attacks import ATTACKS, HARMS, available_protections, run_attack


def main(words: list[str]) -> int:
    attacks = [a for a in ATTACKS if not words or any(word in a.name for word in words)]
    table = Table("attack", "what it tries", "outcome", box=None, pad_edge=False)
    stopped, admitted = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for attack in attacks:
            harms = run_attack(attack, Path(folder) / attack.name).harms
            outcome = f"stopped by {attack.stopped_by}"
            if harms:
                outcome = "not stopped: " + "; ".join(HARMS[harm] for harm in sorted(harms))
            if harms == {attack.harm} and attack.unstoppable:
                admitted.append(attack)
            stopped += not harms
            table.add_row(attack.name, Text(attack.title), outcome)
    console = Console(width=160, highlight=False, markup=False)
    console.print(table)
    protections = ", ".join(f"{name} ({how})" for name, how in available_protections().items())
    console.print(f"\n{platform.system()} {platform.release()}: {protections}")
    console.print(f"{len(attacks)} attacks, {stopped} stopped")
    if admitted:
        console.print("An unprivileged process cannot stop:")
    for attack in admitted:
        console.print(
            f"  {attack.name}: {attack.title} {attack.stopped_by.removeprefix('nothing ')}"
        )
    return int(stopped + len(admitted) < len(attacks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
