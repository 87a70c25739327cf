"""Shapes are checked here, and only here: every call in the tests passes through beartype."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share the cores

from jaxtyping import install_import_hook

with install_import_hook("regard", "beartype.beartype"):
    import regard.training  # noqa: F401  (and with it everything below it)
