"""Take away from this process what an answer does not need, with what the kernel offers to any user.

- `limits` (POSIX): time, memory, the size and number of files, no further processes.
- `landlock` (Linux 5.13): files can be read only below the folders of Python and its packages, without
  regard's own; nothing can be written, and signals stay within the process (6.12).
- `seccomp` (Linux, x86-64 and ARM64): a list of the system calls that computing needs. There is none on it
  that writes a file, starts a process or thread, opens a connection, or signals another process.
- `audit`, only where seccomp is missing: a Python hook. It prevents accidents, and stops nobody who knows
  Python's internals.

None can be taken back by the process. One that the system lacks is left out, and the caller learns which
were set. This module imports nothing from regard.
"""

import contextlib
import ctypes
import math
import os
import platform
import re
import signal
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_PRINTED = 1 << 20  # bytes
MAX_MEMORY = 2 << 30  # bytes, beyond what PyTorch itself uses
MAX_OPEN_FILES = 64
PROTECTIONS = ("limits", "landlock", "seccomp", "audit")
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38


class UnavailableError(Exception):
    """A protection that this system lacks."""


def confine(names: Collection[str], seconds: float, hidden: Path) -> dict[str, str]:
    """Set these protections, with the folder `hidden` unreadable; those that were set, with details."""
    active: dict[str, str] = {}
    setters = {
        "limits": lambda: limit_resources(seconds),
        "landlock": lambda: restrict_files(hidden),
        "seccomp": restrict_calls,
        "audit": restrict_python,
    }
    for name in PROTECTIONS:
        if name in names and not (name == "audit" and "seccomp" in active):
            with contextlib.suppress(UnavailableError, OSError):
                active[name] = setters[name]()
    return active


# ---- limits


def limit_resources(seconds: float) -> str:
    """Resource limits, a signal after the time limit, and the end of this process with its parent's."""
    try:
        import resource
    except ImportError:
        raise UnavailableError from None
    if sys.platform == "linux":
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the system runs out of memory, this process ends first
    limits = {
        "CPU": math.ceil(time.process_time() + seconds) + 1,
        "FSIZE": MAX_PRINTED,
        "NOFILE": MAX_OPEN_FILES,
        "CORE": 0,
        "NPROC": 0,
    }
    with contextlib.suppress(OSError), open("/proc/self/statm") as statm:
        limits["AS"] = int(statm.read().split()[0]) * resource.getpagesize() + MAX_MEMORY
    active = []
    for name, limit in limits.items():
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
            active.append(name)
    signal.setitimer(signal.ITIMER_REAL, seconds + 5)  # in case the parent process has died
    return ", ".join(active)


# ---- Landlock: https://docs.kernel.org/userspace-api/landlock.html

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # ABI version: the number of rights it knows
RULE_PATH_BENEATH = 1
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
DEVICES = ("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/sys/devices/system/cpu")


def restrict_files(hidden: Path) -> str:
    """Reading only below Python's folders, without `hidden`; no writing; no TCP; no signals to others."""
    if sys.platform != "linux":
        raise UnavailableError
    abi = _syscall(CREATE_RULESET, None, 0, 1)
    rights = (1 << max(n for version, n in FILE_RIGHTS.items() if version <= abi)) - 1
    attributes = struct.pack("=QQQ", rights, 0b11, 0b11)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _syscall(CREATE_RULESET, attributes, len(attributes), 0)
    roots = [*sys.path, f"{sys.base_prefix}/lib", *LIBRARIES, *DEVICES]
    copies = (Path(entry) / "regard" for entry in sys.path)
    secret = {hidden.resolve(), *(copy.resolve() for copy in copies if os.path.exists(copy))}
    try:
        for path, access in readable_paths(map(Path, roots), secret):
            with contextlib.suppress(OSError):  # what cannot be opened stays unreadable
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    rule = struct.pack("=Qi", access, descriptor)
                    _syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
                finally:
                    os.close(descriptor)
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return f"ABI {abi}"


def readable_paths(roots: Iterable[Path], hidden: Collection[Path]) -> Iterator[tuple[Path, int]]:
    """Rules that together allow reading `roots` but not `hidden`: a rule covers all that is below its path.

    Of a folder with something hidden below it, only the names can be read, and what is not hidden.
    """
    for root in roots:
        path = root.resolve()
        if path in hidden:
            continue
        if not os.path.isdir(path):
            yield path, READ_FILE
        elif any(folder.is_relative_to(path) for folder in hidden):
            yield path, READ_DIR
            yield from readable_paths(path.iterdir(), hidden)
        else:
            yield path, READ_FILE | READ_DIR


# ---- seccomp: https://docs.kernel.org/userspace-api/seccomp_filter.html

# The calls that pass, as name:number on x86-64:number on ARM64 (-1 where there is none).
ALLOWED = """
# Read, write to what is open already (the socket to the checker, what is printed), ask about files.
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 lseek:8:62 close:3:57 dup:32:23
dup2:33:-1 dup3:292:24 fstat:5:80 newfstatat:262:79 statx:332:291 stat:4:-1 lstat:6:-1
access:21:-1 faccessat:269:48 faccessat2:439:439 readlink:89:-1 readlinkat:267:78
getdents64:217:61 getcwd:79:17 poll:7:-1 ppoll:271:73 select:23:-1 pselect6:270:72 sendto:44:206
recvfrom:45:207
# Memory.
mmap:9:222 munmap:11:215 mremap:25:216 mprotect:10:226 madvise:28:233 brk:12:214 futex:202:98
membarrier:324:283
# Time, random numbers, and questions about itself.
clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101
gettimeofday:96:169 time:201:-1 times:100:153 getrandom:318:278 getpid:39:172 getppid:110:173
gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 uname:63:160
sysinfo:99:179 getrusage:98:165 getcpu:309:168 sched_yield:24:124 sched_getaffinity:204:123
# Its own signals and end.
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132
restart_syscall:219:128 exit:60:93 exit_group:231:94
"""
# Those that pass with some arguments only: no flags to write, to this process, without a new limit.
OPEN, OPENAT, FCNTL = (2, -1), (257, 56), (72, 25)
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # duplicate; get and set close-on-exec; get the status
ALLOW, DENY = 0x7FFF0000, 0x00050000 | 1  # fail with EPERM
LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06


def restrict_calls() -> str:
    """Let only the listed system calls pass; the others fail with PermissionError."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES or struct.calcsize("P") != 8:
        raise UnavailableError
    program = filter_program(*ARCHITECTURES[machine], os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_SET_SECCOMP, 2, header, 0, 0)
    return machine


def allowed_calls() -> Iterator[tuple[int, int]]:
    """The numbers of the calls in ALLOWED."""
    for _name, x86, arm in re.findall(r"(\w+):(-?\d+):(-?\d+)", ALLOWED):
        yield int(x86), int(arm)


def filter_program(column: int, architecture: int, pid: int) -> bytes:
    """The filter in the kernel's BPF: eight bytes (code, jump if true, jump if false, value) a step."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    def argument(index: int, high: bool = False) -> bytes:  # 32 bits of struct seccomp_data
        return step(LOAD, 16 + 8 * index + 4 * high)

    def rule(call: tuple[int, int], *steps: bytes) -> bytes:
        """Steps for one call, which end with its verdict."""
        body = b"".join(steps)
        return (
            step(JUMP_EQUAL, call[column], 0, len(body) // 8) + body if call[column] >= 0 else b""
        )

    allow, deny = step(RETURN, ALLOW), step(RETURN, DENY)
    reads = step(JUMP_ANY_BIT, WRITE_FLAGS, 0, 1) + deny + allow
    to_itself = argument(0) + step(JUMP_EQUAL, pid, 0, 1) + allow + deny
    commands = (step(JUMP_EQUAL, command, 0, 1) + allow for command in FCNTL_COMMANDS)
    asks = (argument(2, high) + step(JUMP_EQUAL, 0, 1, 0) + deny for high in (False, True))
    return b"".join(
        (
            step(LOAD, 4) + step(JUMP_EQUAL, architecture, 1, 0) + deny,
            step(LOAD, 0),
            *(rule(call, allow) for call in allowed_calls()),
            rule(OPEN, argument(1), reads),
            rule(OPENAT, argument(2), reads),
            rule(FCNTL, argument(1), *commands, deny),
            rule(KILL, to_itself),
            rule(TGKILL, to_itself),
            rule(PRLIMIT, *asks, allow),
            deny,
        )
    )


# ---- Python's audit events, where there is no seccomp

FORBIDDEN_EVENTS = (
    *("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "subprocess."),
    *("signal.pthread_kill", "pty.", "socket.", "ctypes.dlopen", "ctypes.dlsym", "resource."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.", "tempfile."),
)


def restrict_python() -> str:
    """An audit hook that forbids what an answer does not need. Python cannot remove an audit hook."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS:
            raise PermissionError("an answer may not write files")
        if event.startswith(FORBIDDEN_EVENTS):
            raise PermissionError(f"an answer may not use {event}")

    sys.addaudithook(audit)
    return "accidents only"


# ---- the C library


def _call(name: str, *arguments: Any) -> int:
    """Call a function of the C library. OSError if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    plain = (ctypes.c_long(part) if isinstance(part, int) else part for part in arguments)
    result = getattr(library, name)(*plain)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: Any) -> int:
    return _call("syscall", number, *arguments)
