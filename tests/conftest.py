"""In tests of single parts, calls pass through beartype, which checks types and tensor shapes."""

import gc
import os
import signal
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jaxtyping
import pytest

from tests import lazy_checks
from tests.checkpoints import save_checkpoint

HERE = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers share the cores
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may use the network
_cache = tempfile.TemporaryDirectory(prefix="regard-tests-")
os.environ["REGARD_CACHE"] = _cache.name  # not the user's cache
# A shell without job control ignores SIGINT in the background, nohup SIGHUP, and tests inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

lazy_checks.install()
with jaxtyping.install_import_hook("regard", "beartype.beartype"):
    import regard.training  # noqa: F401  (imports every package below it)

# Tests of many parts together: they run without checks, as for users, and not at all with --quick.
MANY_PARTS = (
    *("stories", "training", "compare", "labs", "benchmarks", "serve"),
    *("attacks", "fuzz", "released"),
    *("text/test_tasks.py", "text/test_datasets.py", "text/test_overlap.py"),
    "models/test_traced.py",  # while a step is traced, sizes are tensors
    "gpu/test_long.py",  # the compiler would compile the checks
    *("evaluation/test_ablation.py", "test_translator.py", "test_api.py", "test_lines.py"),
)
CHECKED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="tests of single parts only, with every tenth case"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases that are checked and, with --quick, those that run.

    One case of each test is checked, and of a test with many cases every 25th, from another start in
    each test: every model is checked by some of the laws, and every law with some of the models. A checked
    case takes several times as long.
    """
    tests = [item.nodeid.partition("[")[0] for item in items]
    counts, numbers = Counter(tests), Counter[str]()
    left_out = set()
    for item, test in zip(items, tests, strict=True):
        path = item.path.relative_to(HERE).as_posix()
        many_parts = path.startswith(MANY_PARTS)
        is_chosen = (numbers[test] + zlib.crc32(test.encode())) % min(counts[test], 25) == 0
        item.stash[CHECKED] = is_chosen and not many_parts and not path.startswith("page")
        if config.getoption("--quick") and (many_parts or numbers[test] % 10):
            left_out.add(item)
        numbers[test] += 1
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: garbage collection need not visit them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before all fixtures of a test."""
    lazy_checks.start_test(item.stash[CHECKED])


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """checkpoint("gpt2"): the folder of a tiny, randomly initialised checkpoint of that architecture."""

    @cache
    def save(architecture: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint") / architecture
        save_checkpoint(architecture, folder)
        return folder

    return save
