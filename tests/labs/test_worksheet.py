"""Worksheets: the starter files, grading, and the sandbox that isolates an answer file from the checker."""

import inspect
import json
import math
import os
import re
import socket
import struct
import sys
import time
import warnings
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from regard import UserError
from regard.cli.lab_report import print_grade
from regard.labs import LABS, Check, Exercise
from regard.labs.grading import launch, sandbox
from regard.labs.grading.launch import Worker
from regard.labs.grading.sandbox import AnswerError, Sandbox, sanitize
from regard.labs.grading.values import cast_like, describe_type, has_nan
from regard.labs.grading.worker import main as worker
from regard.labs.grading.worker.confine import PROTECTIONS
from regard.labs.grading.worker.wire import Unsupported, decode, encode, receive, send
from regard.labs.grading.worksheet import (
    GradeReport,
    RemoteFunction,
    check_answer,
    grade_answer,
    read_answer,
    write_worksheet,
)

every_lab = pytest.mark.parametrize("lab", LABS.values(), ids=LABS.keys())


def local_function(exercise, function):
    """A RemoteFunction that encodes and decodes as the sandbox does, but runs in this process."""

    def call(encoded, _):
        return decode(json.loads(json.dumps(encode(function(*decode(encoded))))))

    return RemoteFunction(exercise, call)


# ---- properties of every worksheet


@every_lab
def test_worksheet_states_the_exercise_but_not_the_solution(lab, tmp_path):
    text = write_worksheet(lab, tmp_path / "new" / "folder").read_text("utf-8")
    assert " ".join(lab.claim.split()) in " ".join(text.split())
    assert f"regard lab {lab.name} --check" in text
    assert inspect.getsource(lab.exercise.solution).strip().splitlines()[-1].strip() not in text
    namespace: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(text, "worksheet", "exec"), namespace)
    torch.set_default_dtype(torch.float32)
    assert callable(namespace[lab.exercise.function])
    assert namespace["torch"] is torch
    assert namespace["math"] is math


@every_lab
def test_solution_passes_after_encoding(lab):
    checks, remark = grade_answer(lab.exercise, local_function(lab.exercise, lab.exercise.solution))
    assert remark == ""
    assert checks
    assert all(check.passed for check in checks)


@every_lab
@pytest.mark.parametrize(
    ("wrong", "remark_pattern"),
    [
        (None, "returned None; expected .* Is a return statement missing"),
        (object(), "returned a value of type object; expected a"),
        (10**30, "returned an integer of more than 64 bits; expected a"),
        ("\x1b[2J", ""),
        ({"a": 1}, ""),
        (torch.zeros(2, 3, 5, 7, 11), ""),
        (math.nan, ""),
        ([[], [None]], ""),
    ],
)
def test_wrong_result_type_is_explained(lab, wrong, remark_pattern):
    checks, remark = grade_answer(lab.exercise, local_function(lab.exercise, lambda *args: wrong))
    assert re.search(remark_pattern, remark)
    assert "cannot be graded" not in remark
    assert "\x1b" not in remark
    assert remark or not checks[0].passed
    assert not GradeReport("", "", "", checks, remark, "", 0.0).passed


def test_errors_raised_by_grade():
    def grade(answer):
        yield Check("x", 1, "=", 1)
        if not isinstance(answer(3), float):
            raise UserError("expected a number")
        raise ZeroDivisionError("a bug\nin grade")

    exercise = Exercise("", lambda x: x / 2, grade)
    checks, remark = grade_answer(exercise, local_function(exercise, lambda x: "a"))
    assert (len(checks), remark) == (1, "expected a number")
    checks, remark = grade_answer(exercise, local_function(exercise, lambda x: x / 3))
    assert remark == "the result of <lambda>(x = 3) cannot be graded: a bug"


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, complex(1, math.nan), [1, (2, math.nan)], {"a": math.nan}),
        torch.tensor([[1.0, math.nan]]),
        [torch.zeros(2), torch.tensor(math.nan)],
    ],
)
def test_nan_is_found_anywhere(value):
    assert has_nan(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, True, "nan", math.inf, [], {"nan": 1.0}, Unsupported("nan")),
        torch.tensor([True]),
        torch.tensor([1, 2]),
        torch.tensor([math.inf, 1.0]),
    ],
)
def test_no_nan_is_found_where_there_is_none(value):
    assert not has_nan(value)


def test_nan_is_rejected_even_if_no_check_looks_at_it():
    def grade(answer):
        yield Check(
            "the largest", max(answer(3)), "=", 3.0
        )  # max drops a NaN that is not the first

    exercise = Exercise("", lambda n: [float(n), 1.0], grade)
    checks, remark = grade_answer(
        exercise, local_function(exercise, lambda n: [float(n), math.nan])
    )
    assert checks == []
    assert remark.startswith(
        "<lambda>(n = 3) returned NaN: a list of 2 (a number, nan); expected a"
    )


def test_nan_is_accepted_where_the_solution_has_one():
    def grade(answer):
        yield Check("finite", float(answer(3).nansum()), "=", 3.0)

    exercise = Exercise("", lambda n: torch.tensor([n, math.nan]), grade)
    answer = local_function(exercise, exercise.solution)
    assert grade_answer(exercise, answer) == ([Check("finite", 3.0, "=", 3.0)], "")


def test_wrong_shape_is_given_as_the_reason_for_a_failure():
    def grade(answer):
        result = answer(torch.ones(3))
        yield Check("the sum", float(result.sum()), "=", 3.0)

    exercise = Exercise("", lambda x: x, grade)
    assert grade_answer(exercise, local_function(exercise, lambda x: x[:, None])) == (ANY, "")
    checks, remark = grade_answer(exercise, local_function(exercise, lambda x: x[:, None] + x))
    assert not checks[0].passed
    assert remark.endswith("returned a tensor [3, 3]; expected a tensor [3]")


# ---- encoding


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, "a", -3, 2**63 - 1, 0.1, math.inf, 1 - 2j, [], (), {"a": (1, [2.5])}),
        [1, (2, "b")],
    ],
)
def test_plain_values_round_trip(value):
    decoded = decode(json.loads(json.dumps(encode(value))))
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(2.5, dtype=torch.float64, requires_grad=True),
        torch.zeros(3, 0, 5),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([[True, False]]),
        torch.eye(3).to_sparse(),
        torch.tensor([1, -(2**62)]),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_tensors_round_trip(tensor):
    decoded = decode(json.loads(json.dumps(encode(tensor))))
    plain = tensor.detach().to_dense()
    assert decoded.dtype == plain.dtype
    assert decoded.shape == plain.shape
    assert torch.equal(decoded, plain.resolve_conj())


def test_arrays_are_decoded_as_tensors():
    assert torch.equal(decode(encode(np.arange(3.0))), torch.arange(3.0, dtype=torch.float64))
    assert decode(encode(np.float64(2.5))) == 2.5
    assert decode(encode(np.int64(2))) == 2
    assert decode(encode(torch.empty(1, dtype=torch.bfloat16))) == Unsupported(
        "a tensor of torch.bfloat16"
    )


@pytest.mark.parametrize(
    "forged",
    [
        2**63,
        {"a": 1},
        [],
        ["nosuch", 1],
        ["list", 3],
        ["float", "one"],
        ["tensor", ["float64", [1], "AAAA"]],
        ["tensor", ["float64", [-1], ""]],
        ["tensor", ["float64", [True], "AAAAAAAAAAA="]],
        ["tensor", ["float64", [0] * 17, ""]],
        ["tensor", ["float64", [0, 2**70], ""]],
        ["tensor", ["float64", [1], "not base64!!"]],
        ["tensor", ["object", [1], "AAAAAAAAAAA="]],
        ["list", [["list", [["unsupported", 3]]]]],
    ],
)
def test_decode_rejects_invalid_data(forged):
    with pytest.raises(ValueError, match=r"not|base64|could not|Invalid|Only"):
        decode(forged)


def test_messages_are_limited_in_size_and_time():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, {"answer": 3})
        assert receive(ours, time.monotonic() + 5) == {"answer": 3}
        with pytest.raises(ValueError, match="at most 4 MiB"):
            send(theirs, {"answer": "x" * (5 << 20)})
        with pytest.raises(TimeoutError):
            receive(ours, time.monotonic() + 0.01)
        theirs.sendall(struct.pack("!Q", 1 << 60))
        with pytest.raises(ValueError, match="too large"):
            receive(ours, time.monotonic() + 5)
        theirs.sendall(struct.pack("!Q", 3) + b"[1]")
        with pytest.raises(ValueError, match="not a JSON object"):
            receive(ours, time.monotonic() + 5)
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours)


def test_results_are_cast_to_the_type_of_the_solution():
    double = torch.zeros(3, dtype=torch.float64)
    assert cast_like(torch.ones(3), double).dtype == torch.float64
    assert cast_like(torch.ones(3, dtype=torch.int64), double).dtype == torch.float64
    assert cast_like(torch.ones(3, 1), double).shape == (3, 1)  # shapes are left to `grade`
    assert cast_like(torch.tensor([2.5]), 1.0) == 2.5
    assert cast_like(2, torch.tensor(1.0)).dtype == torch.float32
    assert cast_like([1, 2], (3.0, 4.0)) == (1, 2)
    assert cast_like((1, 2, 5), [3.0]) == (1, 2, 5)
    assert cast_like("a", 1.0) == "a"
    assert cast_like({"a": torch.tensor(1)}, {"a": 2}) == {"a": 1}


def test_types_in_words():
    assert describe_type(torch.ones(2, 3)) == "a tensor [2, 3]"
    assert describe_type(torch.ones(2, dtype=torch.bool)) == "a tensor [2] of booleans"
    assert describe_type(torch.ones(2, dtype=torch.int32)) == "a tensor [2] of integers"
    assert describe_type(torch.tensor([math.nan])) == "a tensor [1] with NaN"
    assert describe_type(torch.tensor([math.inf])) == "a tensor [1] with infinity"
    assert describe_type((1, 2.0, "a")) == "a tuple of 3 (a number, a string)"
    assert describe_type(math.nan) == "nan"


def test_report_is_valid_json():
    report = GradeReport("a", "f", "a.py", [Check("x", math.nan, "=", 1.0)], "", "", 0.1)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["passed"] is False
    assert document["checks"][0]["measured"] == "nan"


def test_control_characters_are_replaced():
    assert sanitize("a\x1b[31m\tb\n") == "a\N{REPLACEMENT CHARACTER}[31m\tb\n"


# ---- answer files, each in its own sandbox


def standalone_source(solution):
    """A solution as an answer file: with the functions and numbers of the library that it uses."""
    used = {name: solution.__globals__.get(name) for name in solution.__code__.co_names}
    helpers = [
        inspect.getsource(value)
        for value in used.values()
        if inspect.isfunction(value) and value.__module__.startswith("regard")
    ]
    numbers = [f"{name} = {value}" for name, value in used.items() if isinstance(value, int)]
    imports = ["from __future__ import annotations", "import math, torch"]
    return "\n".join([*imports, *numbers, *helpers, inspect.getsource(solution)])


@every_lab
def test_solution_passes_in_the_sandbox(lab, tmp_path):
    path = tmp_path / "answer.py"
    path.write_text(standalone_source(lab.exercise.solution), "utf-8")
    report = check_answer(lab, path)
    assert report.passed, report.remark


@every_lab
def test_unchanged_worksheet(lab, tmp_path):
    report = check_answer(lab, write_worksheet(lab, tmp_path))
    assert report.checks == []
    expected = f"not implemented yet: fill in {lab.exercise.function} in line "
    assert report.remark.startswith(expected)
    assert "(`raise NotImplementedError`)" in report.remark


@pytest.fixture
def answer(tmp_path):
    """Grade an answer to copying, given the body of its function."""

    def grade(body, seconds=10.0, header="import os, sys, torch", protections=PROTECTIONS):
        path = tmp_path / "copying.py"
        lines = "\n".join("    " + line for line in body.strip().splitlines())
        path.write_text(f"{header}\ndef query(keys, j, beta):\n{lines}\n")
        return check_answer(LABS["copying"], path, seconds, protections)

    return grade


def test_correct_answer(answer):
    report = answer("print('called with', j)\nreturn (beta * keys[j]).float()")
    assert report.passed, report
    assert report.printed == "called with 0\ncalled with 3\ncalled with 10\n"
    assert report.to_dict()["protections"] == report.protections
    assert "limits" in report.protections


USEFUL = """
import dataclasses, random, numpy as np
import torch.nn.functional as F
weight = torch.eye(keys.shape[1], requires_grad=True, dtype=keys.dtype)
torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
print(torch.linalg.svd(torch.rand(40, 40))[1].shape, np.linalg.inv(np.eye(3)).sum(), random.random() < 1)
print(torch.fft.fft(torch.ones(8)).real.sum().item(), torch.compile is not None)
F.conv1d(torch.ones(1, 1, 9), torch.ones(1, 1, 3))
(torch.rand(300, 300) @ torch.rand(300, 300)).softmax(-1)
F.scaled_dot_product_attention(*torch.rand(3, 1, 2, 64, 16))
return beta * (keys @ weight)[j]
"""


def test_computing_is_not_restricted(answer):
    report = answer(USEFUL)
    assert report.passed, report.remark


def test_missing_protections_are_reported(capsys):
    report = GradeReport("", "", "", [], "", "", 0.0, {"limits": "", "seccomp": ""})
    assert report.warning == (
        "on this system an answer file can read your files: check only files you trust"
    )
    assert "write files, start programs" in GradeReport("", "", "", [], "", "", 0.0).warning
    protected = dict.fromkeys(PROTECTIONS, "")
    assert GradeReport("", "", "", [], "", "", 0.0, protected).warning == ""
    print_grade(report)
    assert "an answer file can read your files" in " ".join(capsys.readouterr().out.split())


def test_worker_that_dies_at_the_start_of_an_answer(answer, monkeypatch):
    worker = Worker()
    worker.process.kill()
    worker.process.wait()
    monkeypatch.setattr(sandbox, "take_worker", lambda: worker)
    with pytest.raises(UserError, match="closed its socket to the checker while starting"):
        answer("return keys[j]")


FORBIDDEN = """
import ctypes, multiprocessing, shutil, socket, subprocess, tempfile
attempts = {
    "fork": lambda: os.fork(),
    "system": lambda: os.system("true"),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "popen": lambda: subprocess.Popen(["true"]),
    "process": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    "write": lambda: open(__file__, "w"),
    "low": lambda: os.open("new", os.O_CREAT | os.O_WRONLY),
    "remove": lambda: os.remove(VICTIM),
    "rename": lambda: os.rename(VICTIM, VICTIM + "2"),
    "truncate": lambda: os.truncate(VICTIM, 0),
    "tree": lambda: shutil.rmtree(os.path.dirname(VICTIM)),
    "temporary": lambda: tempfile.mkstemp(),
    "network": lambda: socket.socket(),
    "kill": lambda: os.kill(os.getppid(), 9),
    "group": lambda: os.killpg(os.getpgid(os.getppid()), 9),
    "library": lambda: ctypes.CDLL(None),
    "symbol": lambda: ctypes.pythonapi.Py_Exit,
}
for name, attempt in attempts.items():
    try:
        attempt()
        print("DONE", name)
    except OSError:
        print("forbidden", name)
os.environ.clear()
sys.exit()
"""


def test_audit_hook_where_the_kernel_offers_nothing(answer, tmp_path, monkeypatch):
    """As on macOS: without a fork, the process that imported PyTorch runs the answer."""
    monkeypatch.setattr(sandbox, "take_worker", lambda: Worker(forks=False))
    victim = tmp_path / "mine" / "precious"
    victim.parent.mkdir()
    victim.write_text("unchanged")
    monkeypatch.setenv("SECRET", "word")
    header = f"import os, sys, torch\nVICTIM = {str(victim)!r}\nassert not os.environ"
    report = answer(FORBIDDEN, header=header, protections=("limits", "audit"))
    assert victim.read_text() == "unchanged"
    lines = report.printed.splitlines()
    assert len(lines) == 18
    assert all(line.startswith("forbidden") for line in lines), lines
    assert "SystemExit" in report.remark  # an answer that exits has failed
    assert report.protections.keys() == {"limits", "audit"}


def test_worker_that_cannot_start(monkeypatch, answer):
    monkeypatch.setattr(sandbox, "take_worker", Worker)
    monkeypatch.setattr(launch, "BOOT", "import nosuch")
    with pytest.raises(UserError, match=r"(?s)could not be started .*No module named 'nosuch'"):
        answer("return beta * keys[j]")


ENDINGS = {
    "endless": (
        "print('here', flush=True)\nwhile True: pass",
        "exceeded the time limit of 1 s .*It printed:\n.*here",
    ),
    "exited": ("os._exit(0)", r"its process exited with code 0 while calling query\(keys"),
    "crashed": ("import ctypes\nctypes.string_at(0)", "its process was killed by SIGSEGV"),
    "closed": ("os.closerange(3, 99)\nwhile True: pass", "closed its socket to the checker"),
    "forged": (
        "for number in range(3, 99):\n"
        "    try: os.write(number, bytes(5) + bytes([1, 0, 0]) + b'[' * 65536)\n"
        "    except OSError: pass",
        "it wrote to the checker's socket",
    ),
}


@pytest.mark.parametrize(("body", "message"), ENDINGS.values(), ids=ENDINGS.keys())
def test_process_of_an_answer_is_always_killed(answer, body, message):
    header = "import os, sys, torch\nprint('process', os.getpid(), flush=True)"
    with pytest.raises(UserError, match=f"(?s){message}") as raised:
        answer(body, seconds=1, header=header)
    process = int(re.search(r"process (\d+)", str(raised.value))[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert answer("return beta * keys[j]").passed  # by the same worker


def test_worker_that_was_killed_is_replaced(answer):
    worker = launch.take_worker()
    launch.give_back(worker)
    worker.process.kill()
    worker.process.wait()
    assert answer("return beta * keys[j]").passed
    replacement = launch.take_worker()
    launch.give_back(replacement)
    assert replacement is not worker


def test_answer_that_prints_without_end(answer):
    report = answer("while True: print('x' * 99)")
    assert "it printed more than 1 MiB" in report.remark
    assert len(report.printed) < 3000
    assert "more bytes" in report.printed


DEEP = """
def deeper(): return deeper()
try: deeper()
except RecursionError: print("too deep")
return [torch.empty(10**9) for _ in range(9)]
"""


def test_infinite_recursion_and_memory_limit(answer):
    report = answer(DEEP)
    assert report.printed == "too deep\n"
    assert "can't allocate memory" in report.remark


def test_result_far_larger_than_expected_is_not_graded(answer):
    """`grade` might multiply it, and take all memory of the checker."""
    report = answer("return torch.zeros(70_000)")
    assert report.checks == []
    assert re.search(
        r"returned too much: a tensor \[70000\]; expected a tensor \[3\]", report.remark
    )
    assert len(answer("return {'k' * 10**6: 1}").remark) <= 2000


class LocalSandbox(Sandbox):
    """Runs an answer file in this process: faster, for files that do no harm."""

    def _request(self, message, action):
        file = str(self.path)
        if "source" in message:
            self.function, reply = worker.load_function(
                message["source"], file, message["function"]
            )
            return reply
        try:
            return {"answer": encode(self.function(*decode(message["call"])))}
        except Exception as error:
            return worker.describe_error(error, file)


@pytest.fixture
def local_sandbox(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "worksheet", None)  # restored afterwards
    return lambda source: LocalSandbox(tmp_path / "a.py", source, 1.0)


MISTAKES = {
    "no function": (
        "def qery(): pass",
        'has no function "query". Did you mean "qery"\\? It has: qery',
    ),
    "not a function": ("query = 3", 'has no function "query". It has: none'),
    "syntax": ("\n\ndef query(:", "a.py, line 3: SyntaxError: invalid syntax\n  def query"),
    "import": ("import nosuch", "line 1: ModuleNotFoundError: No module named 'nosuch'"),
    "exit": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_file_that_cannot_be_loaded(local_sandbox, text, message):
    with pytest.raises(UserError, match=message):
        local_sandbox(text).load("query")


RAISING = """
def query(keys, j, beta):
    row = j + 1000
    return keys[row] if j else helper(
        row
    )

def helper(row):
    return [][row]
"""


def test_exception_is_reported_with_its_line(local_sandbox):
    sandbox = local_sandbox(RAISING)
    sandbox.load("query")
    exercise = LABS["copying"].exercise
    checks, remark = grade_answer(exercise, RemoteFunction(exercise, sandbox.call))
    assert checks == []
    assert remark == (
        "query(keys = a tensor [2, 3], j = 0, beta = 1) failed in line 9 (`return [][row]`): "
        "IndexError: list index out of range"
    )


def test_exception_whose_str_raises(local_sandbox):
    source = "class E(Exception):\n    def __str__(self): raise E\ndef query(*_): raise E"
    sandbox = local_sandbox(source)
    sandbox.load("query")
    with pytest.raises(AnswerError) as raised:
        sandbox.call(encode(()), "query()")
    assert (str(raised.value), raised.value.line) == ("E", 3)


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(
        UserError, match=r"there is no file .*--worksheet DIR writes a starter file"
    ):
        read_answer(tmp_path / "nosuch.py")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_answer(tmp_path)
    (tmp_path / "a.py").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not valid UTF-8"):
        read_answer(tmp_path / "a.py")
    (tmp_path / "a.py").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(UserError, match="at most 1 MiB"):
        read_answer(tmp_path / "a.py")


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_limit_must_be_positive_and_finite(seconds, tmp_path):
    with pytest.raises(UserError, match="--limit must be a positive number of seconds"):
        check_answer(LABS["copying"], tmp_path / "a.py", seconds)


def test_existing_worksheet_is_not_overwritten(tmp_path):
    path = write_worksheet(LABS["copying"], tmp_path)
    path.write_text("my work")
    with pytest.raises(UserError, match="already exists and may contain your work"):
        write_worksheet(LABS["copying"], tmp_path)
    assert path.read_text() == "my work"
    with pytest.raises(UserError, match="cannot be written"):
        write_worksheet(LABS["copying"], path)
