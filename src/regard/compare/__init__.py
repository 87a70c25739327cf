"""Experiments: presets x variations x seeds -> tables and curves.

`plan` (which runs to train), `sweep` (train and evaluate them, skip finished ones), `job` and `processes`
(one run in a process of its own, which ends with the comparison), `columns` and `tables`
(table contents and formats), `curves` and `quality` (plots), `outputs` (translations side by side), `speed`
(decoding speed), `report` (write all of it).

Nothing is imported here: the worker of a run on Ray needs no PyTorch.
"""
