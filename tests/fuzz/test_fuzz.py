"""The fuzzer: its mutations, its judgement of outcomes, and a short run; `make fuzz` is the long one."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from regard.errors import RegardWarning, UserError
from tests.fuzz import cases
from tests.fuzz.cases import OUTCOMES, Kind, open_workshop, run_cases
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutations import FORMS, mutate
from tests.fuzz.samples import SAMPLES

CASES = 3
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def short_run() -> dict[str, Any]:
    """A few cases of every kind, in another process: what it imports and forks is no part of this one."""
    command = [sys.executable, "-m", "tests.fuzz", "--cases", str(CASES), "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=240, check=False)
    assert result.stdout, result.stderr.decode()
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutation_is_a_defect(kind: str, short_run: dict[str, Any]) -> None:
    assert sum(short_run["counts"][kind].values()) == CASES
    assert [one for one in short_run["defects"] if one["kind"] == kind] == []


@pytest.mark.parametrize("form", FORMS)
def test_the_same_seed_gives_the_same_mutation(form: str, tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS.values() if kind.form == form]
    assert kinds
    data = json.dumps({"a": [1, {"b": "text"}], "c": 2}).encode()
    data = {"toml": b"a = 1\n[b]\nc = 'd'\n", "text": b"a\tb\nc\td\n"}.get(form, data)
    if form in ("gzip", "zip", "npy", "safetensors"):
        data = make_binary(form)
    results = [mutate(data, form, Random(seed)) for seed in range(200)]
    assert results == [mutate(data, form, Random(seed)) for seed in range(200)]
    assert data not in results
    assert len(set(results)) > 100


def make_binary(form: str) -> bytes:
    if form == "gzip":
        return gzip.compress(b"a\tb\n" * 9, mtime=0)
    out = io.BytesIO()
    if form == "npy":
        np.save(out, np.arange(9, dtype=np.int32))
    elif form == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("a.txt", b"a\tb\n" * 9)
    else:
        return safetensors.numpy.save({"a": np.ones((3, 5)), "b": np.ones(2)}, {"regard": "{}"})
    return out.getvalue()


def give(action: str, folder: Path) -> Any:
    """What a reader could do to a mutated file, by the outcome it should be judged as."""
    if action == "clean":
        raise UserError(f"{folder} is damaged")
    if action == "noticed":
        warnings.warn("changed", RegardWarning, stacklevel=1)
    if action == "traceback":
        raise TypeError
    if action == "hang":
        time.sleep(60)
    if action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return "as before" if action == "same" else "another"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_is_recognised(outcome: str, monkeypatch: Any) -> None:
    def read(folder: Path) -> Any:
        is_mutated = (folder / "file").read_bytes() != b"content"
        is_last = len(list(folder.parent.parent.glob("read-*"))) == 4
        if is_mutated:
            (folder.parent.parent / f"read-{time.monotonic_ns()}").touch()
        return give(outcome, folder) if is_mutated and is_last else "as before"

    kind = Kind("toy", "file", "binary", read, is_checked=outcome != "edited")
    monkeypatch.setitem(KINDS, "toy", kind)
    monkeypatch.setitem(SAMPLES, "toy", lambda folder: (folder / "file").write_bytes(b"content"))
    monkeypatch.setattr(cases, "HANG_SECONDS", 1)
    with open_workshop() as workshop:
        found = list(run_cases(workshop, "toy", range(7)))
    assert [one.seed for one in found] == list(range(7))
    assert [one.name for one in found] == [*["same"] * 4, outcome, "same", "same"]


@pytest.mark.parametrize("message", ["it is damaged", "{folder} " + "x" * 5000])
def test_a_message_that_helps_nobody_is_a_defect(message: str, tmp_path: Path) -> None:
    assert cases.judge_message(message.format(folder=tmp_path), tmp_path)[0] == "traceback"


def test_a_result_that_varies_by_itself_is_reported(monkeypatch: Any) -> None:
    results = iter(range(9))
    monkeypatch.setitem(KINDS, "toy", Kind("toy", "file", "binary", lambda _: next(results)))
    monkeypatch.setitem(SAMPLES, "toy", lambda folder: (folder / "file").write_bytes(b"content"))
    with open_workshop() as workshop, pytest.raises(AssertionError, match="two results"):
        workshop.prepare("toy")
