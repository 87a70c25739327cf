"""The rules of the sandbox: which files can be read, which system calls pass, on each architecture."""

import errno
import os
import struct
import sys
from pathlib import Path

import pytest

from regard.labs.grading.worker import confine
from regard.labs.grading.worker.confine import (
    ALLOW,
    ARCHITECTURES,
    DENY,
    READ_DIR,
    READ_FILE,
    allowed_calls,
    filter_program,
    readable_paths,
)

PID = 4711
both = pytest.mark.parametrize("machine", ARCHITECTURES)


def judge(program, architecture, call, *arguments):
    """Run a filter as the kernel would: the verdict on a system call."""
    words = [part for argument in arguments for part in (argument & 0xFFFFFFFF, argument >> 32)]
    data = struct.pack("=iIQ12I", call, architecture, 0, *words, *[0] * (12 - len(words)))
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    while True:
        code, if_true, if_false, value = steps[position]
        position += 1
        if code == confine.LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == confine.RETURN:
            return value
        else:
            holds = accumulator == value if code == confine.JUMP_EQUAL else accumulator & value
            assert code in (confine.JUMP_EQUAL, confine.JUMP_ANY_BIT)
            position += if_true if holds else if_false


@pytest.fixture
def verdict(machine):
    column, architecture = ARCHITECTURES[machine]
    program = filter_program(column, architecture, PID)
    return lambda call, *arguments: judge(
        program, architecture, call if isinstance(call, int) else call[column], *arguments
    )


@both
def test_listed_calls_pass_and_all_others_fail(machine, verdict):
    listed = {call[ARCHITECTURES[machine][0]] for call in allowed_calls()} - {-1}
    conditional = {confine.OPEN, confine.OPENAT, confine.FCNTL, confine.KILL, confine.TGKILL}
    numbers = {call[ARCHITECTURES[machine][0]] for call in conditional | {confine.PRLIMIT}}
    assert len(listed) > 40
    for call in set(range(600)) - numbers:
        assert verdict(call, 1, 1, 1) == (ALLOW if call in listed else DENY), call
    assert DENY & 0xFFFF == errno.EPERM


@both
def test_filter_denies_the_calls_of_another_architecture(machine):
    column, architecture = ARCHITECTURES[machine]
    program = filter_program(column, architecture, PID)
    read = next(allowed_calls())[column]
    assert judge(program, architecture, read) == ALLOW
    assert judge(program, architecture ^ 1, read) == DENY
    assert judge(program, architecture, read | 0x40000000) == DENY  # x32


@both
def test_calls_that_depend_on_their_arguments(machine, verdict):
    cases = [
        (confine.OPENAT, (-100 & 0xFFFFFFFF, 1, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
        *((confine.OPENAT, (0, 1, flag), DENY) for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT)),
        *((confine.OPENAT, (0, 1, flag), DENY) for flag in (os.O_TRUNC, os.O_APPEND)),
        (confine.KILL, (PID, 9), ALLOW),
        *((confine.KILL, (pid, 9), DENY) for pid in (0, 1, 0xFFFFFFFF, PID + 1)),
        (confine.TGKILL, (PID, PID, 6), ALLOW),
        (confine.TGKILL, (1, PID, 6), DENY),
        (confine.FCNTL, (3, 1), ALLOW),
        (confine.FCNTL, (3, 8), DENY),  # F_SETOWN
        (confine.PRLIMIT, (0, 7, 0, 1), ALLOW),
        (confine.PRLIMIT, (0, 7, 1, 0), DENY),
        (confine.PRLIMIT, (0, 7, 1 << 40, 0), DENY),
    ]
    if machine == "x86_64":
        cases += [(confine.OPEN, (1, os.O_RDONLY), ALLOW), (confine.OPEN, (1, os.O_RDWR), DENY)]
    for call, arguments, expected in cases:
        assert verdict(call, *arguments) == expected, (call, arguments)


def test_package_among_others_is_hidden(tmp_path):
    for name in ("lib/torch/a.py", "lib/regard/labs/copying.py", "other/b.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "lib" / "six.py").touch()
    (tmp_path / "link").symlink_to(tmp_path / "lib")
    roots = [tmp_path / "link", tmp_path / "other", tmp_path / "nosuch"]
    rules = dict(readable_paths(roots, {tmp_path / "lib" / "regard"}))
    assert rules == {
        tmp_path / "lib": READ_DIR,
        tmp_path / "lib" / "torch": READ_FILE | READ_DIR,
        tmp_path / "lib" / "six.py": READ_FILE,
        tmp_path / "other": READ_FILE | READ_DIR,
        tmp_path / "nosuch": READ_FILE,  # cannot be opened, and is skipped
    }


def test_protections_that_a_system_lacks_are_left_out(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert confine.confine(["landlock", "seccomp"], 1.0, Path("regard")) == {}
