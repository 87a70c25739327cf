"""`regard translate --input`: a file in, a file out; blank lines, bad lines, a closed pipe, Ctrl-C."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard import lines

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A blank line, one in Latin-1, one too long, one with an unknown character."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"<U> one\n\n<U> na\xefve\n" + b"a" * 300 + "\n<L> 漢\n<L> Two\n".encode())
    return path


def test_bad_lines_are_reported_and_the_rest_is_done(regard, run: Path, source: Path):
    result = regard("translate", run, "--input", source)
    good = regard("translate", run, "<U> one", "<L> Two").out.split("\n")
    assert result.out.split("\n") == [good[0], "", "", "", "", good[1], ""]
    assert result.code == 1
    reported = result.err.splitlines()
    assert reported[0] == "line 3 is not valid UTF-8 (byte 7)"
    assert reported[1].startswith("line 4 has 300 tokens and this model reads at most 256")
    assert reported[2].startswith('line 5 contains "漢", which is not in this model')
    assert reported[3] == "3 of 6 lines were not translated"


def test_blank_lines_stay_blank(regard, run: Path, tmp_path):
    (tmp_path / "in.txt").write_text("<U> a\n\n \t\n<U> b\n\n")
    result = regard("translate", run, "--input", tmp_path / "in.txt")
    assert (result.code, result.err) == (0, "")
    assert [bool(line) for line in result.out.split("\n")] == [1, 0, 0, 1, 0, 0]
    nbest = regard("translate", run, "--input", tmp_path / "in.txt", "--beam", 2, "--nbest", 2)
    assert [line[:2] for line in nbest.out.split("\n")] == [
        "1\t",
        "2\t",
        "",
        "",
        "1\t",
        "2\t",
        "",
        "",
    ]


def test_json_has_an_object_for_each_line(regard, run: Path, source: Path):
    result = regard("translate", run, "--input", source, "--json")
    records = json.loads(result.out)
    assert result.code == 1
    texts = regard("translate", run, "--input", source).out.split("\n")[:-1]
    assert [record["text"] for record in records] == texts
    assert [record.get("error", "")[:6] for record in records] == [
        "",
        "",
        *(f"line {n}" for n in (3, 4, 5)),
        "",
    ]
    assert records[1].pop("score") is records[1].pop("normalised") is None
    assert records[1] == {"text": "", "source": [], "target": [], "alternatives": []}
    alone = json.loads(regard("translate", run, "<U> one", "--json").out)
    assert records[0].keys() == alone[0].keys()


def test_windows_do_not_change_the_output(regard, run: Path, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("".join(f"<U> {'ab ' * (n % 7)}c\n" for n in range(40)))
    whole = regard("translate", run, "--input", tmp_path / "in.txt")
    monkeypatch.setattr(lines.windows, "__defaults__", (2, 8))
    assert regard("translate", run, "--input", tmp_path / "in.txt").out == whole.out
    as_json = regard("translate", run, "--input", tmp_path / "in.txt", "--json").out
    assert [record["text"] for record in json.loads(as_json)] == whole.out.split("\n")[:-1]


def test_output_and_gzip(regard, run: Path, tmp_path):
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(b"<U> a\n<U> b\n"))
    arguments = [
        "translate",
        run,
        "--input",
        tmp_path / "in.txt.gz",
        "--output",
        tmp_path / "out.txt",
    ]
    result = regard(*arguments)
    assert (result.code, result.out, result.err) == (0, "", "")
    expected = regard("translate", run, "<U> a", "<U> b").out
    assert (tmp_path / "out.txt").read_text("utf-8") == expected
    again = regard(*arguments)
    assert (again.code, again.err) == (0, f"overwriting {tmp_path / 'out.txt'}\n")
    single = regard("translate", run, "<U> a", "--output", tmp_path / "single.txt")
    assert (single.code, single.out) == (0, "")
    assert (tmp_path / "single.txt").read_text("utf-8") == expected.split("\n")[0] + "\n"


MISTAKES = {
    "both": (["<U> a", "--input", "HERE/in.txt"], "give texts in quotes or --input, not both"),
    "the input as output": (["--input", "HERE/in.txt", "--output", "HERE/in.txt"], "is the input"),
    "no folder": (["--input", "HERE/in.txt", "--output", "HERE/no/out"], "out cannot be written"),
    "empty": (["--input", "HERE/empty.txt"], "nothing to translate: .*empty.txt is empty"),
    "damaged gzip": (["--input", "HERE/bad.gz"], "bad.gz cannot be read: Not a gzipped"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(regard, run: Path, tmp_path, mistake):
    (tmp_path / "in.txt").write_text("<U> a\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.gz").write_text("x")
    words, message = MISTAKES[mistake]
    result = regard("translate", run, *(word.replace("HERE", str(tmp_path)) for word in words))
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err), result.err
    assert (tmp_path / "in.txt").read_text() == "<U> a\n"


def test_a_language_model_reads_no_file(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "val.txt"):
        Path(name).write_text("one two\nthree\n" * 4)
    Path("lm.toml").write_text('[data]\nkind = "text"\ntrain = "train.txt"\nval = "val.txt"\n')
    small = ["--set", "training.epochs=1", "--set", "model.hidden_dim=8", "--device", "cpu"]
    assert regard("train", "lm.toml", *small).code == 0
    result = regard("translate", "runs/lm", "--input", "train.txt")
    assert result.code == 2
    assert "a language model, which has no source: leave out --input" in result.err


# --- a closed pipe and Ctrl-C, in a process of its own ----------------------------------------------

COMMAND = [sys.executable, "-m", "regard", "translate"]


def start(*words: object, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *map(str, words)], env=environment, **pipes)


def test_a_closed_pipe_ends_quietly(run: Path, tmp_path):
    (tmp_path / "in.txt").write_text("<U> a\n" * 20_000)
    with start(run, "--input", tmp_path / "in.txt") as process:
        assert process.stdout.readline()  # as `head -1` does
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == 141


@pytest.mark.parametrize("form", ["text", "json"])
def test_ctrl_c_keeps_what_is_done(run: Path, tmp_path, form):
    out, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    options = ["--output", out, *(["--json"] if form == "json" else [])]
    with start(run, "--input", "-", *options, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"<U> a\n" * 64)
        process.stdin.flush()  # one window; then it waits for more
        deadline = time.monotonic() + 120
        while not (part.is_file() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stderr.read() == b"regard: interrupted after 64 lines\n"
    text = out.read_text("utf-8")
    assert len(json.loads(text) if form == "json" else text.splitlines()) == 64
