"""Experiments: presets x variations x seeds -> tables and curves.

`plan` (which runs), `sweep` (run them, reuse what exists), `statistics` (means, intervals, paired
tests), `columns` and `tables` (what a paper prints), `curves` and `quality` (pictures), `outputs` (what
each system says), `speed` (how fast), `report` (all of it, written).
"""

from regard.compare.plan import Run, System, plan
from regard.compare.report import write_report
from regard.compare.sweep import sweep

__all__ = ["Run", "System", "plan", "sweep", "write_report"]
