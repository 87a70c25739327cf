"""Signals that end a command: one sentence, exit code 128 + the signal, whatever runs at that moment."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import typer

from regard import __main__, cli, signals
from regard.errors import describe_shortage


@pytest.fixture
def handlers(monkeypatch):
    """Restore what a command changes for the rest of its process."""
    former = {number: signal.getsignal(number) for number in signals.ENDING}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def end_while(monkeypatch, capsys, work) -> tuple[int, str]:
    """The exit code and standard error of a command that does `work()`."""
    monkeypatch.setattr(cli, "main", work)
    with pytest.raises(SystemExit) as end:
        __main__.main()
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize("number", signals.ENDING)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_signal_ends_a_command_with_one_sentence(handlers, monkeypatch, capsys, number, times):
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            for _ in range(times - 1):
                signal.raise_signal(number)
            cleaned.append("up")

    name = signal.Signals(number).name
    expected = (128 + number, f"regard: stopped by {name}\n")
    assert end_while(monkeypatch, capsys, work) == expected
    assert cleaned == ["up"]
    assert signal.getsignal(number) == signal.SIG_IGN  # while the interpreter ends


def test_an_import_that_a_signal_breaks_is_no_bug(handlers, monkeypatch, capsys):
    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import") from None

    assert end_while(monkeypatch, capsys, work) == (143, "regard: stopped by SIGTERM\n")


def test_a_signal_in_a_destructor_is_not_lost(handlers, monkeypatch, capsys):
    class Resource:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def work() -> None:
        Resource()
        time.sleep(20)
        pytest.fail("goes on")

    assert end_while(monkeypatch, capsys, work) == (130, "regard: stopped by SIGINT\n")


def test_a_later_signal_ends_a_command_that_hangs(handlers, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(signals, "PATIENCE", -1.0)
    ending = signals.Ending()
    with pytest.raises(signals.Stopped):
        ending.handle(signal.SIGINT, None)
    ending.handle(signal.SIGTERM, None)
    assert ended == [143]


def test_ignored_signals_stay_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with signals.end_at_signals():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_what_is_printed_after_the_end_of_the_terminal_goes_nowhere(handlers):
    """A terminal that is closed fails every later write, also of what a checkpoint is about to follow."""
    ours, theirs = os.openpty()
    saved = os.dup(2)
    try:
        os.dup2(theirs, 2)
        signals.write_message(signal.SIGHUP, "never seen")
        assert not os.isatty(2)
        os.write(2, b"fails no more")
    finally:
        os.dup2(saved, 2)
        for handle in (ours, theirs, saved):
            os.close(handle)


def test_a_command_that_says_nothing_about_a_signal_itself(handlers, monkeypatch, capsys):
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def silent(number: int) -> None:
        raise signals.Stopped(number) if number else KeyboardInterrupt

    @app.command()
    def explains() -> None:
        try:
            raise signals.Stopped(signal.SIGHUP)
        except KeyboardInterrupt as stop:
            sys.stderr.write("saved")
            raise typer.Exit(signals.exit_code(stop)) from None

    for words, expected in {
        ("silent", "15"): (143, "regard: stopped by SIGTERM\n"),
        ("silent", "0"): (130, "regard: interrupted\n"),
        ("explains",): (129, "saved"),
    }.items():
        assert end_while(monkeypatch, capsys, partial(app, words)) == expected


@pytest.mark.parametrize("number", signals.ENDING)
def test_a_signal_during_an_import_ends_at_once(tmp_path, number):
    """An exception there reached C++ code of PyTorch, which aborted."""
    (tmp_path / "slow.py").write_text(
        "import os\n"
        "try:\n    os.kill(os.getpid(), int(os.environ['SENT']))\n"
        "except BaseException:\n    os.abort()\n"  # as C++ code does
    )
    code = (
        "from regard import cli, __main__\ncli.main = lambda: __import__('slow')\n__main__.main()\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "SENT": str(int(number))}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    expected = (128 + number, f"regard: stopped by {signal.Signals(number).name}\n")
    assert (result.returncode, result.stderr) == expected


# --- what the system refuses ----------------------------------------------------------------------

SHORTAGES = {
    "out of memory": MemoryError(),
    "out of memory: use": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    "raise the limit (ulimit -v)": ImportError("libtorch.so: failed to map segment from shared"),
    "smaller batch": RuntimeError("could not create a primitive"),
    "too many open files": OSError(24, "Too many open files", "a"),
    "threads or processes": RuntimeError("can't start new thread"),
    "a.txt: No space left on device": OSError(28, "No space left on device", "a.txt"),
    "a file: Input/output error": OSError(5, "Input/output error"),
}


@pytest.mark.parametrize("sentence", SHORTAGES)
def test_what_the_system_refuses_is_no_bug(handlers, monkeypatch, capsys, sentence):
    def work() -> None:
        raise SHORTAGES[sentence]

    code, err = end_while(monkeypatch, capsys, work)
    assert code == 2
    assert err.startswith("regard: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("bug", [RuntimeError("shape"), ImportError("no x"), OSError(2, "x", "y")])
def test_a_bug_keeps_its_traceback(handlers, monkeypatch, bug):
    def work() -> None:
        raise bug

    assert describe_shortage(bug) == ""
    monkeypatch.setattr(cli, "main", work)
    with pytest.raises(type(bug)):
        __main__.main()
