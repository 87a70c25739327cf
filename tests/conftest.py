"""Shapes are checked here, and only here: every call in the tests passes through beartype."""

import os
import tempfile

from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share the cores
_cache = tempfile.TemporaryDirectory(prefix="regard-tests-")
os.environ["REGARD_CACHE"] = _cache.name  # the user's own is not for tests

with install_import_hook("regard", "beartype.beartype"):
    import regard.training  # noqa: F401  (and with it everything below it)
