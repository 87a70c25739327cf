"""Worksheets: what is written, what a check says, and what no answer file can do to the checker."""

import inspect
import json
import math
import os
import re
import signal
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
from regard.labs import LABS, Check, Exercise, sandbox_worker
from regard.labs.sandbox import AnswerError, Sandbox, sanitize
from regard.labs.sandbox_worker import Unsupported, decode, encode, receive, send
from regard.labs.worksheet import Answer, Marks, check, fitted, graded, kind, read, write

every_lab = pytest.mark.parametrize("lab", LABS.values(), ids=LABS.keys())


def loop_back(exercise, function):
    """A function asked as in a process of its own, but in this one."""

    def ask(sent, _):
        return decode(json.loads(json.dumps(encode(function(*decode(sent))))))

    return Answer(exercise, ask)


# ---- laws of every worksheet


@every_lab
def test_a_worksheet_states_the_question_and_not_the_answer(lab, tmp_path):
    text = write(lab, tmp_path / "new" / "folder").read_text("utf-8")
    assert " ".join(lab.claim.split()) in " ".join(text.split())
    assert f"regard lab {lab.name} --check" in text
    assert inspect.getsource(lab.exercise.solution).strip().splitlines()[-1].strip() not in text
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(text, "worksheet", "exec"), names)
    torch.set_default_dtype(torch.float32)
    assert callable(names[lab.exercise.function])
    assert names["torch"] is torch
    assert names["math"] is math


@every_lab
def test_our_answer_passes_from_another_process(lab):
    checks, remark = graded(lab.exercise, loop_back(lab.exercise, lab.exercise.solution))
    assert remark == ""
    assert checks
    assert all(one.passed for one in checks)


@every_lab
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (None, "returned nothing, where .* is expected; did you forget to return it"),
        (object(), "returned a thing of type object, where .* is expected"),
        (10**30, "returned a whole number of more than 64 bits, where .* is expected"),
        ("\x1b[2J", ""),
        ({"a": 1}, ""),
        (torch.zeros(2, 3, 5, 7, 11), ""),
        (math.nan, ""),
        ([[], [None]], ""),
    ],
)
def test_something_of_another_kind_gets_a_sentence(lab, wrong, told):
    checks, remark = graded(lab.exercise, loop_back(lab.exercise, lambda *given: wrong))
    assert re.search(told, remark)
    assert "cannot be graded" not in remark
    assert "\x1b" not in remark
    assert remark or not checks[0].passed
    assert not Marks("", "", "", checks, remark, "", 0.0).passed


def test_the_laws_own_word_comes_first():
    def grade(answer):
        yield Check("x", 1, "=", 1)
        if not isinstance(answer(3), float):
            raise UserError("give a number, please")
        raise ZeroDivisionError("a law\nthat is broken")

    exercise = Exercise("", lambda x: x / 2, grade)
    checks, remark = graded(exercise, loop_back(exercise, lambda x: "a"))
    assert (len(checks), remark) == (1, "give a number, please")
    checks, remark = graded(exercise, loop_back(exercise, lambda x: x / 3))
    assert remark == "<lambda>(x = 3) returned what cannot be graded: a law"


def test_a_wrong_shape_explains_a_failure():
    def grade(answer):
        got = answer(torch.ones(3))
        yield Check("the sum", float(got.sum()), "=", 3.0)

    exercise = Exercise("", lambda x: x, grade)
    assert graded(exercise, loop_back(exercise, lambda x: x[:, None])) == (ANY, "")
    checks, remark = graded(exercise, loop_back(exercise, lambda x: x[:, None] + x))
    assert not checks[0].passed
    assert remark.endswith("returned a tensor [3, 3], where a tensor [3] is expected")


@every_lab
def test_an_untouched_worksheet(lab):
    def ask(sent, asked):
        raise AnswerError("NotImplementedError", "", 2, "def f():\n    raise NotImplementedError")

    checks, remark = graded(lab.exercise, Answer(lab.exercise, ask))
    assert checks == []
    wanted = f"nothing written yet: fill in {lab.exercise.function} in line 2 (`raise NotImpl"
    assert remark.startswith(wanted)


# ---- what travels


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, "a", -3, 2**63 - 1, 0.1, math.inf, 1 - 2j, [], (), {"a": (1, [2.5])}),
        [1, (2, "b")],
    ],
)
def test_plain_values_travel(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)


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
def test_tensors_travel(tensor):
    back = decode(json.loads(json.dumps(encode(tensor))))
    plain = tensor.detach().to_dense()
    assert back.dtype == plain.dtype
    assert back.shape == plain.shape
    assert torch.equal(back, plain.resolve_conj())


def test_arrays_travel_as_tensors():
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
        ["list", [["list", [["foreign", 3]]]]],
    ],
)
def test_what_was_not_encoded_is_refused(forged):
    with pytest.raises(ValueError, match=r"not|base64|could not|Invalid|Only"):
        decode(forged)


def test_messages_have_a_largest_size_and_an_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, {"answer": 3})
        assert receive(ours, time.monotonic() + 5) == {"answer": 3}
        with pytest.raises(ValueError, match="more than the 4 MiB"):
            send(theirs, {"answer": "x" * (5 << 20)})
        with pytest.raises(TimeoutError):
            receive(ours, time.monotonic() + 0.01)
        theirs.sendall(struct.pack("!Q", 1 << 60))
        with pytest.raises(ValueError, match="too large"):
            receive(ours, time.monotonic() + 5)
        theirs.sendall(struct.pack("!Q", 3) + b"[1]")
        with pytest.raises(ValueError, match="no table"):
            receive(ours, time.monotonic() + 5)
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours)


def test_answers_come_in_our_precision():
    double = torch.zeros(3, dtype=torch.float64)
    assert fitted(torch.ones(3), double).dtype == torch.float64
    assert fitted(torch.ones(3, dtype=torch.int64), double).dtype == torch.float64
    assert fitted(torch.ones(3, 1), double).shape == (3, 1)  # the law decides about shapes
    assert fitted(torch.tensor([2.5]), 1.0) == 2.5
    assert fitted(2, torch.tensor(1.0)).dtype == torch.float32
    assert fitted([1, 2], (3.0, 4.0)) == (1, 2)
    assert fitted((1, 2, 5), [3.0]) == (1, 2, 5)
    assert fitted("a", 1.0) == "a"
    assert fitted({"a": torch.tensor(1)}, {"a": 2}) == {"a": 1}


def test_kinds_in_words():
    assert kind(torch.ones(2, 3)) == "a tensor [2, 3]"
    assert kind(torch.ones(2, dtype=torch.bool)) == "a tensor [2] of truth values"
    assert kind(torch.ones(2, dtype=torch.int32)) == "a tensor [2] of whole numbers"
    assert kind(torch.tensor([math.nan])) == "a tensor [1] with nan or infinity in it"
    assert kind((1, 2.0, "a")) == "a tuple of 3 (a number, a string)"
    assert kind(math.nan) == "nan"


def test_marks_are_plain_json():
    marks = Marks("a", "f", "a.py", [Check("x", math.nan, "=", 1.0)], "", "", 0.1)
    document = json.loads(json.dumps(marks.document, allow_nan=False))
    assert document["passed"] is False
    assert document["checks"][0]["measured"] == "nan"


def test_terminals_are_left_alone():
    assert sanitize("a\x1b[31m\tb\n") == "a\N{REPLACEMENT CHARACTER}[31m\tb\n"


# ---- files, each in a process of its own


@pytest.fixture
def answer(tmp_path):
    """An answer to copying, from the body of its function; checked with little time."""

    def checked(body, seconds=10.0, before="import os, sys, torch"):
        path = tmp_path / "copying.py"
        lines = "\n".join("    " + line for line in body.strip().splitlines())
        path.write_text(f"{before}\ndef query(keys, j, beta):\n{lines}\n")
        return check(LABS["copying"], path, seconds)

    return checked


def test_a_right_answer(answer):
    marks = answer("print('asked for', j)\nreturn (beta * keys[j]).float()")
    assert marks.passed, marks
    assert marks.printed == "asked for 0\nasked for 3\nasked for 10\n"


FORBIDDEN = """
import ctypes, multiprocessing, shutil, socket, subprocess, tempfile
tries = {
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
for name, attempt in tries.items():
    try:
        attempt()
        print("DONE", name)
    except OSError:
        print("refused", name)
os.environ.clear()
sys.exit()
"""


def test_what_an_answer_may_not_do(answer, tmp_path, monkeypatch):
    victim = tmp_path / "mine" / "precious"
    victim.parent.mkdir()
    victim.write_text("kept")
    monkeypatch.setenv("SECRET", "word")
    before = f"import os, sys, torch\nVICTIM = {str(victim)!r}\nassert 'SECRET' not in os.environ"
    marks = answer(FORBIDDEN, before=before)
    assert victim.read_text() == "kept"
    said = marks.printed.splitlines()
    assert len(said) == 18
    assert all(line.startswith("refused") for line in said), said
    assert "SystemExit" in marks.remark  # an answer that leaves is an answer that failed


ENDINGS = {
    "endless": ("print('here', flush=True)\nwhile True: pass", "time is up: .*It printed:\nhere"),
    "left": ("os._exit(0)", r"its process left with code 0 when it was asked for query\(keys"),
    "crashed": ("import ctypes\nctypes.string_at(0)", "its process was ended by SIGSEGV"),
    "closed": ("os.closerange(3, 99)\nwhile True: pass", "closed its channel to the checker"),
    "forged": (
        "for number in range(3, 99):\n"
        "    try: os.write(number, bytes(5) + bytes([1, 0, 0]) + b'[' * 65536)\n"
        "    except OSError: pass",
        "it wrote to the checker's own channel",
    ),
}


@pytest.mark.parametrize("body", ENDINGS.values(), ids=ENDINGS.keys())
def test_no_answer_outlives_its_checker(answer, body, monkeypatch):
    started = []
    entered = Sandbox.__enter__
    monkeypatch.setattr(Sandbox, "__enter__", lambda self: started.append(self) or entered(self))
    with pytest.raises(UserError, match=f"(?s){body[1]}"):
        answer(body[0], seconds=1)
    process = started[0]._process
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # the group is gone


def test_an_answer_that_prints_without_end(answer):
    marks = answer("while True: print('x' * 99)")
    assert "it printed more than 1 MiB" in marks.remark
    assert len(marks.printed) < 3000
    assert "bytes more" in marks.printed


DEEP = """
def deeper(): return deeper()
try: deeper()
except RecursionError: print("too deep")
return [torch.empty(10**9) for _ in range(9)]
"""


def test_a_recursion_without_end_and_all_of_the_memory(answer):
    marks = answer(DEEP)
    assert marks.printed == "too deep\n"
    assert "can't allocate memory" in marks.remark


def test_checks_cannot_be_forged_from_inside(answer):
    marks = answer(
        "import regard.labs.lab\n"
        "regard.labs.lab.Check.passed = property(lambda check: True)\n"
        "return keys[0]"
    )
    assert not marks.passed
    assert sum(check.passed for check in marks.checks) == 2  # where j is 0 and beta is 1


class Near(Sandbox):
    """A reader's file that answers in this process: quick, for files that do no harm."""

    def _say(self, message, doing):
        file = str(self.path)
        if "source" in message:
            self.written, told = sandbox_worker._load(message["source"], file, message["function"])
            return told
        try:
            return {"answer": encode(self.written(*decode(message["call"])))}
        except Exception as error:
            return sandbox_worker._trouble(error, file)


@pytest.fixture
def near(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "worksheet", None)  # put back afterwards
    return lambda source: Near(tmp_path / "a.py", source, 1.0)


MISTAKES = {
    "no function": (
        "def qery(): pass",
        'has no function "query". Did you mean "qery"\\? It has: qery',
    ),
    "nothing": ("query = 3", 'has no function "query". It has: none'),
    "syntax": ("\n\ndef query(:", "a.py, line 3: SyntaxError: invalid syntax\n  def query"),
    "an import": ("import nosuch", "line 1: ModuleNotFoundError: No module named 'nosuch'"),
    "an end": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_file_that_cannot_be_asked(near, text, told):
    with pytest.raises(UserError, match=told):
        near(text).load("query")


RAISING = """
def query(keys, j, beta):
    row = j + 1000
    return keys[row] if j else helper(
        row
    )

def helper(row):
    return [][row]
"""


def test_an_exception_is_told_with_its_line(near):
    asking = near(RAISING)
    asking.load("query")
    exercise = LABS["copying"].exercise
    checks, remark = graded(exercise, Answer(exercise, asking.ask))
    assert checks == []
    assert remark == (
        "query(keys = a tensor [2, 3], j = 0, beta = 1) failed in line 9 (`return [][row]`): "
        "IndexError: list index out of range"
    )


def test_words_that_cannot_be_said(near):
    silent = "class E(Exception):\n    def __str__(self): raise E\ndef query(*_): raise E"
    asking = near(silent)
    asking.load("query")
    with pytest.raises(AnswerError) as raised:
        asking.ask(encode(()), "query()")
    assert (str(raised.value), raised.value.line) == ("E", 3)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*--worksheet DIR writes one"):
        read(tmp_path / "nosuch.py")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read(tmp_path)
    (tmp_path / "a.py").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not valid UTF-8"):
        read(tmp_path / "a.py")
    (tmp_path / "a.py").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(UserError, match="more than 1 MiB"):
        read(tmp_path / "a.py")


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_limit_is_a_limit(seconds, tmp_path):
    with pytest.raises(UserError, match="--limit is a number of seconds above 0"):
        check(LABS["copying"], tmp_path / "a.py", seconds)


def test_no_worksheet_is_overwritten(tmp_path):
    path = write(LABS["copying"], tmp_path)
    path.write_text("my work")
    with pytest.raises(UserError, match="is there already, perhaps with your work in it"):
        write(LABS["copying"], tmp_path)
    assert path.read_text() == "my work"
    with pytest.raises(UserError, match="cannot be written"):
        write(LABS["copying"], path)
