"""Hostile input and hostile environments: exit code 2 and one sentence, at once, without a traceback."""

import io
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard import cli
from regard.cli import failures
from regard.errors import UserError

DEEP = "[" * 5000
DIGITS = "1" * 5000
LONG = "n" * 300
MASK = '{{"what": "mask", "keys": [{}]}}'

# Arguments and the message. No command gets far enough to import PyTorch's kernels or to write a file.
COMMANDS: dict[str, tuple[list[str], str]] = {
    "deep setting": (["train", "case", "--set", f"seed={DEEP}"], "it is nested too deeply"),
    "deep variation": (["compare", "case", "--vary", f"seed={DEEP}", "--dry-run"], "nested too"),
    "deep file": (
        ["train", "deep.toml"],
        "deep.toml is not valid TOML: .* nested more than 64 deep",
    ),
    "deep intervention": (
        ["translate", "de-en", "a", "--intervene", DEEP],
        "nested more than 64 deep",
    ),
    "deep lab": (["lab", "copying", "--set", f"beta={DEEP}"], "it is nested too deeply"),
    "deep key": (["train", "case", "--set", f"{'a.' * 3000}b=1"], "a: unknown key"),
    "digits": (["train", "case", "--set", f"seed={DIGITS}"], "an integer with too many digits"),
    "digits in a file": (
        ["train", "digits.toml"],
        "digits.toml is not valid TOML: it has an integer",
    ),
    "digits as a seed": (["train", "case", "--seed", DIGITS], "--seed"),
    "digits as a beam": (["evaluate", "de-en", "--beam", DIGITS], "--beam takes integers from 1"),
    "digits in JSON": (
        ["translate", "de-en", "a", "--intervene", MASK.format(DIGITS)],
        "--intervene: the table cannot be read: the integer .* is too large",
    ),
    "a huge key": (
        ["translate", "de-en", "a", "--intervene", MASK.format(10**30)],
        "--intervene: the table cannot be read: the integer .* is too large",
    ),
    "a huge beam": (["translate", "de-en", "a", "--beam", "1000000000"], "--beam.* equal to 1000"),
    "huge beams": (["evaluate", "de-en", "--beam", "5,1000000000"], "from 1 to 1,000"),
    "many seeds": (["compare", "case", "--seeds", "999999999", "--dry-run"], "from 1 to 1,000"),
    "many runs": (
        ["compare", "case", "--seeds", "900", "--vary", "model.cell=gru,lstm", "--dry-run"],
        "these are 1,800 runs, and a comparison has at most 1,000",
    ),
    "huge rounds": (["bench", "training", "--rounds", str(10**18)], "--rounds"),
    "a huge lab": (["lab", "copying", "--set", "keys=1000000000"], "less than or equal to 512"),
    "NUL in a file of data": (
        ["train", "case", "--set", r'data={kind="files", train="a\u0000b.tsv", val="c.tsv"}'],
        "a path contains the character NUL",
    ),
    "endless data": (
        [
            "train",
            "case",
            "--set",
            'data={kind="files", train=["/dev/zero", "/dev/random"], val="c.tsv"}',
        ],
        "data.train: /dev/zero is a device, not a file",
    ),
    "endless input": (["translate", "de-en", "--input", "/dev/zero"], "is a device, not a file"),
    "endless settings": (["train", "endless.toml"], "endless.toml is a device, not a file"),
    "NUL in an argument": (["train", "a\0b.toml"], "argument 2 contains the character NUL"),
    "NUL in a run": (["translate", "a\0b", "x"], "argument 2 contains the character NUL"),
    "argument that is not UTF-8": (
        ["translate", "de-en", "Stra\udcdfe"],
        r"argument 3 is not valid UTF-8: 'Stra\\udcdfe'",
    ),
    "path that is not UTF-8": (["train", "Stra\udcdfe.toml"], "argument 2 is not valid UTF-8"),
    "long run": (["train", "case", "--run", LONG], "n: File name too long|n...: File name too"),
    "long run to read": (["translate", LONG, "x"], "File name too long"),
    "long preset": (["train", LONG], "File name too long"),
    "long file": (["presets", f"{LONG}.toml"], "File name too long"),
    "long folder": (["runs", LONG], "File name too long"),
    "long comparison": (["compare", "case", "--out", LONG, "--dry-run"], "File name too long"),
    "long picture": (["diagram", "de-en", "x", "--out", f"{LONG}.png"], "File name too long"),
    "long answer": (["lab", "copying", "--check", f"{LONG}.py"], "File name too long"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "deep.toml").write_text(f"a = {DEEP}")
    (tmp_path / "digits.toml").write_text(f"seed = {DIGITS}")
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_hostile_command(regard, here: Path, name: str) -> None:
    words, message = COMMANDS[name]
    before = sorted(here.iterdir())
    result = regard(*words)
    assert result.code == 2
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", result.err).split())
    assert re.search(message, text), text
    assert "Traceback" not in text
    assert len(text) < 1000
    assert result.out == ""
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("width", [0, 1, 7])
def test_narrow_terminal(regard, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert regard("presets").code == 0
    assert regard("train", "--help").code == 0
    assert regard("train", "no-such-preset").code == 2


def test_no_home(regard, monkeypatch) -> None:
    def unknown_user(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "REGARD_CACHE", "REGARD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    result = regard("data", "list")
    assert (result.code, result.out) == (2, "")
    assert "there is no home directory: set HOME, or REGARD_CACHE" in result.err


def test_deleted_working_directory(regard, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = regard("presets")
    assert (result.code, result.out) == (2, "")
    assert "the working directory no longer exists: change to another one" in result.err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("a mistake"), "a mistake"),
        (PermissionError(13, "Permission denied", "a/b"), "a/b: Permission denied"),
        (OSError(28, "No space left on device"), "an input or output failed: No space left"),
        (MemoryError(), "out of memory: use a smaller model"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "out of memory: use",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory: use"),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deeply"),
        (UnicodeEncodeError("ascii", "aß", 1, 2, "x"), r"'\xdf' does not exist in the encoding as"),
        (UnicodeEncodeError("utf-8", "a\udcdf", 1, 2, "x"), r"'\udcdf' is half a character"),
        (ValueError("embedded null byte"), "a path contains the character NUL"),
    ],
)
def test_failures_of_the_system_are_one_sentence(regard, monkeypatch, error, message) -> None:
    monkeypatch.setattr(cli, "app", lambda: throw(error))
    result = regard("presets")
    assert (result.code, result.out) == (2, "")
    assert f"regard: {message}" in result.err


@pytest.mark.parametrize("bug", [ValueError("x"), RuntimeError("x"), KeyError("x"), TypeError("x")])
def test_a_bug_keeps_its_traceback(regard, monkeypatch, bug: Exception) -> None:
    assert failures.explain(bug) is None
    monkeypatch.setattr(cli, "app", lambda: throw(bug))
    with pytest.raises(type(bug)):
        regard("presets")


def test_output_that_fails_at_the_end(monkeypatch, capsys) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli, "app", lambda: sys.stdout.write("x"))
    monkeypatch.setattr(sys, "argv", ["regard"])
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "standard output cannot be written: No space left" in capsys.readouterr().err


def throw(error: Exception) -> None:
    raise error


def shell(redirections: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "$@" {redirections}'
    arguments = [sys.executable, "-m", "regard", *words]
    return subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | variables,
        check=False,
    )


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


# Commands that do not import PyTorch, so that each takes half a second.
@pytest.mark.parametrize(
    ("redirections", "words", "code", "message"),
    [
        pytest.param(">/dev/full", ["presets"], 2, "No space left on device", marks=FULL),
        pytest.param(">/dev/full", ["--version"], 2, "No space left on device", marks=FULL),
        pytest.param("2>/dev/full", ["train", "no"], 2, "", marks=FULL),
        (">&-", ["presets"], 0, ""),
        ("2>&-", ["train", "no-such-preset"], 2, ""),
        ("<&- >&- 2>&-", ["presets", "case"], 0, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_streams(redirections, words, code, message, unbuffered) -> None:
    result = shell(redirections, *words, PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == code
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == bool(message)


def test_closed_standard_input() -> None:
    result = shell("<&-", "translate", "de-en", "--input", "-")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "regard: nothing to translate: standard input is empty\n"


def test_a_locale_without_unicode() -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = shell("", "translate", "de-en", "schläft", **plain)
    assert result.returncode == 2
    assert re.fullmatch(
        r"regard: argument 3 is not valid UTF-8: .*, or set PYTHONUTF8=1\n", result.stderr
    )
